//! Resources, such as licences, and who has their tokens.

use anyhow::Result;
use pcfarm_proto::v1::{ListResourcesRequest, ListResourcesResponse, Resource, SetResourceRequest};
use serde::Serialize;

use crate::args::sharing::ResourcesVerb;
use crate::farm::Farm;
use crate::output::{self, Column, Output};
use crate::text::{self, cut};

pub async fn run(farm: &Farm, verb: ResourcesVerb, output: Output) -> Result<()> {
    let mut client = farm.queue();
    let found = match verb {
        ResourcesVerb::List => {
            farm.call("listing resources", client.list_resources(farm.request(ListResourcesRequest {}))).await?
        }
        ResourcesVerb::Set { name, tokens, description } => {
            let request = SetResourceRequest { name, tokens: Some(tokens), description, version: String::new() };
            farm.call("setting a resource", client.set_resource(farm.request(request))).await?
        }
        ResourcesVerb::Delete { name } => {
            let request = SetResourceRequest { name, tokens: None, description: String::new(), version: String::new() };
            farm.call("deleting a resource", client.set_resource(farm.request(request))).await?
        }
    };
    output.print(|| json(&found), || table(&found))
}

fn table(found: &ListResourcesResponse) -> String {
    let columns = [
        Column::Text("RESOURCE"),
        Column::Number("TOKENS"),
        Column::Number("IN USE"),
        Column::Text("NEEDED BY"),
        Column::Text("DESCRIPTION"),
    ];
    let needs = |resource: &Resource| {
        let needs: Vec<String> =
            resource.needs.iter().map(|need| format!("{} ({})", need.job_type, need.tokens)).collect();
        cut(&needs.join(", "), 40)
    };
    let rows = found.resources.iter().map(|resource| {
        vec![
            cut(&resource.name, 24),
            text::number(resource.tokens),
            text::number(resource.in_use),
            needs(resource),
            cut(&resource.description, 40),
        ]
    });
    output::table(&columns, rows.collect(), "no resources: `pcfarm resources set NAME TOKENS` makes one")
}

#[derive(Serialize)]
struct ResourcesJson<'a> {
    resources: Vec<ResourceJson<'a>>,
}

#[derive(Serialize)]
struct ResourceJson<'a> {
    name: &'a str,
    tokens: i64,
    in_use: i64,
    description: &'a str,
    needs: Vec<NeedJson<'a>>,
}

#[derive(Serialize)]
struct NeedJson<'a> {
    job_type: &'a str,
    tokens: i64,
}

fn json(found: &ListResourcesResponse) -> ResourcesJson<'_> {
    ResourcesJson {
        resources: found
            .resources
            .iter()
            .map(|one| ResourceJson {
                name: &one.name,
                tokens: one.tokens,
                in_use: one.in_use,
                description: &one.description,
                needs: one.needs.iter().map(|n| NeedJson { job_type: &n.job_type, tokens: n.tokens }).collect(),
            })
            .collect(),
    }
}
