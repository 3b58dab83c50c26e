use super::*;

const CAT: &str = "# /lib/systemd/system/pcfarm-worker.service
# An agent.
[Unit]
ProtectHome=no
[Service]
User=pcfarm-worker
StateDirectory=pcfarm-worker
SupplementaryGroups=input
DevicePolicy=closed
DeviceAllow=char-input r
CapabilityBoundingSet=
RestrictAddressFamilies=AF_INET \\
# between
  AF_UNIX
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
RestrictNamespaces=yes

[Install]
WantedBy=multi-user.target

# /etc/systemd/system/pcfarm-worker.service.d/more.conf
[Service]
RestrictNamespaces=
RestrictNamespaces=user
MemoryMax=4G
SystemCallErrorNumber=EPERM
Restart=no
TimeoutStopSec=9
";

fn properties(rule: &Rule) -> Vec<String> {
    rule.lines.iter().map(Line::property).collect()
}

#[test]
fn rules_are_the_lines_in_force_with_their_places() {
    let unit = Unit::of(CAT);
    let names: Vec<&str> = unit.rules.iter().map(|rule| rule.name.as_str()).collect();
    let expected = ["devices", "CapabilityBoundingSet", "RestrictAddressFamilies", "SystemCallArchitectures"];
    assert_eq!(names, [&expected[..], &["system calls", "RestrictNamespaces", "MemoryMax"]].concat());
    assert_eq!(properties(&unit.rules[0]), ["DevicePolicy=closed", "DeviceAllow=char-input r"]);
    assert_eq!(properties(&unit.rules[1]), ["CapabilityBoundingSet="]);
    assert_eq!(unit.rules[2].lines[0].value.split_whitespace().collect::<Vec<_>>(), ["AF_INET", "AF_UNIX"]);
    let calls = ["SystemCallFilter=@system-service", "SystemCallFilter=~@privileged", "SystemCallErrorNumber=EPERM"];
    assert_eq!(properties(&unit.rules[4]), calls);
    assert_eq!(
        unit.rules[3].lines[0].to_string(),
        "/lib/systemd/system/pcfarm-worker.service:14: SystemCallArchitectures=native"
    );
    let more = "/etc/systemd/system/pcfarm-worker.service.d/more.conf";
    assert_eq!(unit.rules[5].lines[0].to_string(), format!("{more}:3: RestrictNamespaces=user"));
    assert_eq!(unit.groups[0].property(), "SupplementaryGroups=input");
    assert_eq!((unit.user.as_deref(), unit.group.as_deref()), (Some("pcfarm-worker"), None));
    assert_eq!(unit.untried, []);
}

/// The list names the agent's own settings, so a setting of a later systemd is tried.
#[test]
fn every_setting_is_a_rule_that_is_not_the_agents_own() {
    for setting in [
        "TasksMax=1",
        "CPUQuota=1%",
        "AppArmorProfile=x",
        "SELinuxContext=x",
        "RootDirectory=/srv",
        "SecureBits=noroot",
        "LimitCORE=0",
        "LimitCPU=1",
        "SocketBindDeny=any",
        "RestrictNetworkInterfaces=lo",
        "PrivatePIDs=yes",
        "UMask=0777",
        "NoExecPaths=/",
        "ExecPaths=/bin",
        "Personality=x86",
        "OfAYearToCome=yes",
    ] {
        let unit = Unit::of(&format!("# /etc/a.service\n[Service]\n{setting}\n"));
        assert_eq!(unit.rules.first().map(properties), Some(vec![setting.to_owned()]), "{setting}");
    }
    for setting in [
        "Type=notify",
        "ExecStart=/bin/x",
        "ExecStartPre=/bin/x",
        "RestartSec=1",
        "RestartPreventExitStatus=2",
        "WatchdogSec=1",
        "TimeoutStopSec=1",
        "StateDirectory=x",
        "RuntimeMaxSec=1",
        "StandardOutput=null",
        "X-Own=1",
        "LoadCredential=x",
        "RemoveIPC=yes",
        "User=x",
        "Group=x",
    ] {
        assert_eq!(Unit::of(&format!("# /etc/a.service\n[Service]\n{setting}\n")).rules, [], "{setting}");
    }
}

#[test]
fn specifiers_are_replaced_or_the_line_is_named() {
    for (value, expected) in [
        ("/x %S/y", Some("/x /var/lib/y")),
        ("%t/%N", Some("/run/pcfarm-worker")),
        ("100%%", Some("100%")),
        ("%n", Some("pcfarm-worker.service")),
        ("/home/%u", None),
        ("50%", Some("50%")),
    ] {
        assert_eq!(expanded(value).as_deref(), expected, "{value}");
    }
    let unit = Unit::of("# /etc/a.service\n[Service]\nBindPaths=/home/%u\n");
    assert_eq!((unit.rules.len(), unit.untried[0].to_string().as_str()), (0, "/etc/a.service:2: BindPaths=/home/%u"));
}

#[test]
fn the_packaged_unit_has_the_rules_that_stop_programs() {
    let unit = Unit::of(&format!("# /lib/systemd/system/pcfarm-worker.service\n{}", crate::service::system::UNIT_TEXT));
    for name in [
        "devices",
        "SystemCallArchitectures",
        "RestrictAddressFamilies",
        "RestrictNamespaces",
        "system calls",
        "ProtectHome",
    ] {
        assert!(unit.rules.iter().any(|rule| rule.name == name), "{name}");
    }
    // Directories of the agent would be given to the check, and taken away after it.
    assert!(unit.rules.iter().flat_map(|rule| &rule.lines).all(|line| !line.name.ends_with("Directory")));
}

/// Bisects with a check that fails under each of these rules, and returns the blockers and the number of runs.
fn found(stop: &[&str]) -> (Vec<String>, usize) {
    let unit = Unit::of(CAT);
    let mut runs = 0;
    let found = blockers(&unit.rules, &mut |rules: &[&Rule]| {
        runs += 1;
        Ok::<bool, ()>(!rules.iter().any(|rule| stop.contains(&rule.name.as_str())))
    });
    (found.expect("each run has an outcome").iter().map(|rule| rule.name.clone()).collect(), runs)
}

#[test]
fn blocking_rules_are_found_in_few_runs() {
    for stop in [
        &["SystemCallArchitectures"][..],
        &["devices"],
        &["MemoryMax"],
        // Lifting either of them alone helps nothing.
        &["devices", "RestrictAddressFamilies"],
        &["RestrictNamespaces", "system calls"],
    ] {
        let (found, runs) = found(stop);
        assert!(
            stop.iter().all(|name| found.iter().any(|known| known == name)) && found.len() == stop.len(),
            "{found:?}"
        );
        assert!(runs <= 14, "{runs} runs for {stop:?}");
    }
    assert_eq!(found(&[]).0, Vec::<String>::new());
}

#[test]
fn a_run_without_an_outcome_ends_the_search() {
    let unit = Unit::of(CAT);
    assert_eq!(blockers(&unit.rules, &mut |_: &[&Rule]| Err("no answer")), Err("no answer"));
}

#[test]
fn a_drop_in_adds_to_the_unit_or_resets_it() {
    let unit = Unit::of(&CAT.replace("RestrictNamespaces=user\n", "RestrictNamespaces=user\nBindPaths=/home/%u\n"));
    let open = unit.with(
        "# A drop-in.\n[Service]\nRestrictNamespaces=\nRestrictNamespaces=pid\nDeviceAllow=char-drm rw\nBindPaths=/x\n",
    );
    let of = |name: &str| open.rules.iter().find(|rule| rule.name == name).map(properties).unwrap_or_default();
    assert_eq!(of("RestrictNamespaces"), ["RestrictNamespaces=pid"]);
    assert_eq!(of("devices"), ["DevicePolicy=closed", "DeviceAllow=char-input r", "DeviceAllow=char-drm rw"]);
    assert_eq!(of("system calls").len(), 3, "other rules stay");
    assert_eq!((of("BindPaths").len(), &open.untried, &open.groups), (0, &unit.untried, &unit.groups));
    assert!(open.without(&["devices"]).rules.iter().all(|rule| rule.name != "devices"));
}

#[test]
fn variables_of_the_agent_are_no_rules() {
    let unit = Unit::of(
        "# /etc/a.service\n[Service]\nEnvironment=OLD=1\nEnvironment=\nEnvironment=LICENSE=27000@lic \"A=b c\"\n\
         EnvironmentFile=-/etc/default/%N\nPassEnvironment=X\nUnsetEnvironment=Y\n",
    );
    assert_eq!(unit.rules, []);
    let expected = [
        "Environment=LICENSE=27000@lic \"A=b c\"",
        "EnvironmentFile=-/etc/default/pcfarm-worker",
        "PassEnvironment=X",
        "UnsetEnvironment=Y",
    ];
    assert_eq!(unit.variables.iter().map(Line::property).collect::<Vec<_>>(), expected);
}
