//! `pcfarm slots`: what agents run beside themselves.

use anyhow::Result;

use crate::args::SlotArgs;
use crate::farm::Farm;
use crate::fleet;
use crate::output::{self, Column, Output};
use crate::text::{self, ago, cut, plain};
use pcfarm_proto::v1::{ListSlotsRequest, SetSlotRequest, Slot};
use serde::Serialize;

#[derive(Serialize)]
struct SlotsJson {
    slots: Vec<SlotJson>,
}

#[derive(Serialize)]
struct SlotJson {
    hostname: String,
    name: String,
    workstation: String,
    started: Option<String>,
    state: Option<String>,
    selection: Option<String>,
}

pub async fn list(farm: &Farm, output: Output) -> Result<()> {
    let mut client = farm.workstations();
    let call = client.list_slots(farm.request(ListSlotsRequest {}));
    let slots = farm.call("listing slots", call).await?.slots;
    let columns =
        [Column::Text("WORKSTATION"), Column::Text("STATE"), Column::Text("STARTED"), Column::Reason("TAKES")];
    let state = |slot: &Slot| if slot.state.is_empty() { "not connected".to_owned() } else { slot.state.clone() };
    let takes = |slot: &Slot| match slot.selection.as_str() {
        "" => "whatever it can run".to_owned(),
        selection => plain(selection),
    };
    let now = jiff::Timestamp::now();
    let rows = slots
        .iter()
        .map(|slot| vec![cut(&workstation(slot), 40), state(slot), ago(slot.started.as_ref(), now), takes(slot)]);
    let none = "no slots; `pcfarm slots start NAME HOST` makes one";
    output.print(
        || SlotsJson { slots: slots.iter().map(json).collect() },
        || output::table(&columns, rows.collect(), none),
    )
}

pub async fn set(farm: &Farm, args: SlotArgs, running: bool, output: Output) -> Result<()> {
    let SlotArgs { name, hostnames } = args;
    let hostnames = fleet::hostnames(farm, &hostnames, false).await?;
    let doing = if running { "starting a slot" } else { "stopping a slot" };
    let request = SetSlotRequest { hostnames, name, running };
    let mut client = farm.workstations();
    farm.call(doing, client.set_slot(farm.request(request))).await?;
    list(farm, output).await
}

fn workstation(slot: &Slot) -> String {
    format!("{}#{}", slot.hostname, slot.name)
}

fn json(slot: &Slot) -> SlotJson {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    SlotJson {
        hostname: slot.hostname.clone(),
        name: slot.name.clone(),
        workstation: workstation(slot),
        started: text::rfc3339(slot.started.as_ref()),
        state: given(&slot.state),
        selection: given(&slot.selection),
    }
}
