//! Drop-ins that PC Farm documents, and the choice of those that let a check pass. Pure.
//!
//! A rule that blocks a check does not tell which part of it the check needs: device rules keep programs from GPUs and from `/dev/fuse` alike. So a
//! drop-in is advised only if the check has passed under all rules with it.

use super::unit::{Rule, Unit, rule_of};

/// A drop-in with its text.
#[derive(Debug, PartialEq, Eq)]
pub struct DropIn {
    pub name: &'static str,
    pub text: &'static str,
}

const DROP_INS: [DropIn; 4] = [
    DropIn { name: "gpu", text: include_str!("../../../deploy/systemd/drop-ins/gpu.conf") },
    DropIn { name: "32-bit", text: include_str!("../../../deploy/systemd/drop-ins/32-bit.conf") },
    DropIn { name: "netlink", text: include_str!("../../../deploy/systemd/drop-ins/netlink.conf") },
    DropIn { name: "browser-sandbox", text: include_str!("../../../deploy/systemd/drop-ins/browser-sandbox.conf") },
];

impl DropIn {
    fn settings(&self) -> impl Iterator<Item = &'static str> {
        self.text.lines().filter(|line| line.contains('=') && !line.starts_with('#'))
    }

    fn changes(&self, rule: &Rule) -> bool {
        self.settings().filter_map(|line| line.split_once('=')).any(|(name, _)| rule_of(name) == rule.name)
    }
}

/// Changes of the unit that a check needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Opening<'a> {
    /// Drop-ins with which the check has passed.
    pub drop_ins: Vec<&'static DropIn>,
    /// Rules that no documented drop-in opens for it.
    pub others: Vec<&'a Rule>,
}

/// Finds out which drop-ins open the blocking rules. `passes` runs the check under all rules of a unit.
pub fn opening<'a>(unit: &Unit, blockers: &[&'a Rule], passes: &mut impl FnMut(&Unit) -> bool) -> Opening<'a> {
    let count = |drop_in: &DropIn| blockers.iter().filter(|rule| drop_in.changes(rule)).count();
    let mut candidates: Vec<&'static DropIn> = DROP_INS.iter().filter(|drop_in| count(drop_in) > 0).collect();
    candidates.sort_by_key(|drop_in| std::cmp::Reverse(count(drop_in)));
    if let Some(alone) = candidates.iter().find(|drop_in| passes(&unit.with(drop_in.text))) {
        return Opening { drop_ins: vec![alone], others: Vec::new() };
    }
    if let [_] = blockers {
        return Opening { drop_ins: Vec::new(), others: blockers.to_vec() };
    }
    let mut found = Opening::default();
    for rule in blockers {
        // Without the other blockers the check passes if the drop-in opens this one.
        let others: Vec<&str> =
            blockers.iter().filter(|other| *other != rule).map(|other| other.name.as_str()).collect();
        let mut opens = |drop_in: &DropIn| drop_in.changes(rule) && passes(&unit.with(drop_in.text).without(&others));
        match candidates.iter().find(|drop_in| opens(drop_in)) {
            Some(drop_in) if found.drop_ins.contains(drop_in) => {}
            Some(drop_in) => found.drop_ins.push(drop_in),
            None => found.others.push(rule),
        }
    }
    let whole = found.drop_ins.iter().fold(unit.clone(), |unit, drop_in| unit.with(drop_in.text));
    let open: Vec<&str> = found.others.iter().map(|rule| rule.name.as_str()).collect();
    if !found.drop_ins.is_empty() && !passes(&whole.without(&open)) {
        return Opening { drop_ins: Vec::new(), others: blockers.to_vec() };
    }
    found
}

/// The setting of a rule that opens it.
fn setting_to_change(rule: &Rule) -> &str {
    let has = |name: &str| rule.lines.iter().any(|line| line.name == name);
    match rule.name.as_str() {
        // Device nodes are missing then, so permissions do not help.
        "devices" if has("PrivateDevices") => "PrivateDevices",
        "devices" => "DeviceAllow",
        "system calls" => "SystemCallFilter",
        _ => rule.lines.first().map_or("", |line| line.name.as_str()),
    }
}

/// An instruction for the administrator of this machine.
pub fn advice(opening: &Opening<'_>) -> String {
    let named = opening.drop_ins.iter().map(|drop_in| {
        let settings: Vec<&str> = drop_in.settings().collect();
        format!("the drop-in {}.conf ({})", drop_in.name, settings.join("; "))
    });
    let others = opening.others.iter().map(|rule| format!("a drop-in with another {}=", setting_to_change(rule)));
    let parts: Vec<String> = named.chain(others).collect();
    format!(
        "`systemctl edit pcfarm-worker` puts a drop-in in its place: {}. See \"Programs that need more\" in docs/workstations.md",
        parts.join(", and ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit() -> Unit {
        Unit::of(&format!("# /lib/systemd/system/pcfarm-worker.service\n{}", crate::service::system::UNIT_TEXT))
    }

    fn has(unit: &Unit, rule: &str, value: &str) -> bool {
        let mut lines = unit.rules.iter().filter(|one| one.name == rule).flat_map(|one| &one.lines);
        lines.any(|line| line.value.split_whitespace().any(|word| word == value))
    }

    /// A need of a check: its rule, and the word in a line that grants it.
    type Need = (&'static str, &'static str);

    /// A check with its needs, the drop-ins to advise, and the settings to change besides.
    type Case<'a> = (&'a str, &'a [Need], &'a [&'a str], &'a [&'a str]);

    /// Advice for a check that needs all of these.
    fn advised(needs: &[Need]) -> (Vec<&'static str>, Vec<String>, usize) {
        let unit = unit();
        let rules: Vec<&Rule> = unit.rules.iter().filter(|rule| needs.iter().any(|need| need.0 == rule.name)).collect();
        let mut runs = 0;
        let opening = opening(&unit, &rules, &mut |unit: &Unit| {
            runs += 1;
            let lifted = |rule: &str| unit.rules.iter().all(|one| one.name != rule);
            needs.iter().all(|(rule, word)| lifted(rule) || has(unit, rule, word))
        });
        let names = opening.drop_ins.iter().map(|drop_in| drop_in.name).collect();
        let says = advice(&opening);
        for drop_in in &opening.drop_ins {
            assert!(says.contains(&format!("the drop-in {}.conf (", drop_in.name)), "{says}");
        }
        let others = opening.others.iter().map(|rule| setting_to_change(rule).to_owned()).collect::<Vec<_>>();
        for other in &others {
            assert!(says.contains(&format!("a drop-in with another {other}=")), "{says}");
        }
        (names, others, runs)
    }

    #[test]
    fn a_drop_in_is_advised_only_if_the_check_passes_with_it() {
        let (devices, calls, families) = ("devices", "system calls", "RestrictAddressFamilies");
        let cases: &[Case<'_>] = &[
            ("a GPU", &[(devices, "char-nvidia")], &["gpu"], &[]),
            ("/dev/fuse", &[(devices, "/dev/fuse")], &[], &["DeviceAllow"]),
            ("ptrace", &[(calls, "ptrace")], &[], &["SystemCallFilter"]),
            ("AF_PACKET", &[(families, "AF_PACKET")], &[], &["RestrictAddressFamilies"]),
            ("AF_NETLINK", &[(families, "AF_NETLINK")], &["netlink"], &[]),
            ("ip", &[(families, "AF_NETLINK"), (calls, "capset")], &["netlink"], &[]),
            ("a sandbox", &[("RestrictNamespaces", "user"), (calls, "chroot")], &["browser-sandbox"], &[]),
            ("a 32-bit binary", &[("SystemCallArchitectures", "x86")], &["32-bit"], &[]),
            ("files at home", &[("ProtectHome", "no")], &[], &["ProtectHome"]),
            (
                "netlink and /dev/fuse",
                &[(devices, "/dev/fuse"), (families, "AF_NETLINK")],
                &["netlink"],
                &["DeviceAllow"],
            ),
            (
                "a 32-bit binary with a GPU",
                &[(devices, "char-drm"), ("SystemCallArchitectures", "x86")],
                &["gpu", "32-bit"],
                &[],
            ),
            ("netlink and ptrace", &[(families, "AF_NETLINK"), (calls, "ptrace")], &["netlink"], &["SystemCallFilter"]),
        ];
        for (case, needs, drop_ins, others) in cases {
            let (named, left, runs) = advised(needs);
            assert_eq!((named.as_slice(), left.len()), (*drop_ins, others.len()), "{case}: {left:?}");
            assert!(others.iter().all(|other| left.iter().any(|known| known == other)), "{case}: {left:?}");
            assert!(runs <= 8, "{case}: {runs} runs");
        }
    }

    #[test]
    fn a_device_rule_without_device_nodes_is_opened_by_another_setting() {
        let unit = Unit::of("# /etc/a.service\n[Service]\nPrivateDevices=yes\nDeviceAllow=char-drm rw\n");
        let blockers: Vec<&Rule> = unit.rules.iter().collect();
        let opening = opening(&unit, &blockers, &mut |_| false);
        assert!(advice(&opening).contains("a drop-in with another PrivateDevices="), "{opening:?}");
    }
}
