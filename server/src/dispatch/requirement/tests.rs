use super::*;
use proptest::prelude::*;

fn requirement(text: &str) -> Requirement {
    Requirement::of(&RawJson(text.to_owned().into())).expect("as the database writes it")
}

fn facts() -> Facts {
    Facts {
        cores: 8,
        memory_bytes: 24 << 30,
        system_name: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        gpus: vec!["nvidia".to_owned()],
        programs: vec![("minizinc".to_owned(), Version::of("2.8.5")), ("tool".to_owned(), None)],
        labels: ["lab-a", "disk=ssd"].map(str::to_owned).into(),
    }
}

#[test]
fn every_condition_holds_of_those_who_have_it() {
    let condition =
        |fact: &str, is: &str, value: &str| format!(r#"{{"fact": "{fact}", "is": "{is}", "value": {value}}}"#);
    let program =
        |version: &str| format!(r#"{{"fact": "program", "is": "=", "value": "minizinc", "at_least": "{version}"}}"#);
    let cases = [
        (condition("cores", ">=", "8"), true),
        (condition("cores", ">", "8"), false),
        (condition("cores", "<", "9"), true),
        (condition("cores", "<=", "7"), false),
        (condition("cores", "=", "8"), true),
        (condition("cores", "!=", "8"), false),
        (condition("memory", ">=", "25769803776"), true),
        (condition("memory", ">=", "25769803777"), false),
        (condition("gpus", ">=", "1"), true),
        (condition("gpus", "=", "0"), false),
        (condition("system", "=", r#""linux""#), true),
        (condition("system", "!=", r#""linux""#), false),
        (condition("arch", "=", r#""aarch64""#), false),
        (condition("gpu", "=", r#""nvidia""#), true),
        (condition("gpu", "!=", r#""amd""#), true),
        (condition("label", "=", r#""lab-a""#), true),
        (condition("label", "=", r#""disk=ssd""#), true),
        (condition("label", "=", r#""disk""#), false),
        (condition("label", "!=", r#""old""#), true),
        (condition("label", "!=", r#""lab-a""#), false),
        (condition("program", "=", r#""minizinc""#), true),
        (condition("program", "!=", r#""tool""#), false),
        (condition("program", "!=", r#""other""#), true),
        (program("2.8"), true),
        (program("2.8.5.0"), true),
        (program("2.10"), false),
        (program("2.8.6"), false),
        (r#"{"fact": "program", "is": "=", "value": "tool", "at_least": "0"}"#.to_owned(), false),
    ];
    for (condition, expected) in &cases {
        assert_eq!(requirement(&format!("[{condition}]")).is_met(&facts()), *expected, "{condition}");
    }
    let all = |wanted: bool| {
        let chosen: Vec<&str> =
            cases.iter().filter(|(_, holds)| !wanted || *holds).map(|(text, _)| text.as_str()).collect();
        requirement(&format!("[{}]", chosen.join(","))).is_met(&facts())
    };
    assert!(all(true) && !all(false), "all must hold");
}

#[test]
fn what_is_not_understood_nobody_has() {
    let mut requirements = Requirements::default();
    let strange = RawJson(r#"[{"fact": "moon", "is": "=", "value": "full"}]"#.to_owned().into());
    let none = RawJson("[]".to_owned().into());
    let (strange, none) = (requirements.note(&strange), requirements.note(&none));
    let met = requirements.met(&facts(), &mut HashMap::new());
    assert!(!met.contains(&strange) && met.contains(&none), "{met:?}");
}

#[test]
fn a_requirement_is_looked_at_once_and_forgotten_in_time() {
    let mut requirements = Requirements::default();
    let text = |cores: usize| RawJson(format!(r#"[{{"fact": "cores", "is": ">=", "value": {cores}}}]"#).into());
    let first = requirements.note(&text(4));
    let version = requirements.version();
    assert_eq!((requirements.note(&text(4)), requirements.version()), (first, version), "it is the same");
    // What was found out is not found out again: here it is something else than would be found.
    let mut judged = HashMap::from([(first, false)]);
    assert!(requirements.met(&facts(), &mut judged).is_empty());
    for cores in 5..200 {
        requirements.begin_look();
        requirements.note(&text(cores));
        requirements.end_look();
    }
    assert!(requirements.known.len() <= KEPT + 1 && requirements.ids.len() == requirements.known.len());
    requirements.met(&facts(), &mut judged);
    assert!(judged.len() <= KEPT + 1 && !judged.contains_key(&first));
    assert_ne!(requirements.note(&text(4)), first, "an id is given once");
}

fn any_condition() -> impl Strategy<Value = Condition> {
    let comparison = prop::sample::select(vec![
        Comparison::Equal,
        Comparison::Different,
        Comparison::Less,
        Comparison::AtMost,
        Comparison::More,
        Comparison::AtLeast,
    ]);
    let equality = prop::sample::select(vec![Equality::Has, Equality::HasNot]);
    let names = |names: &[&str]| prop::sample::select(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
    let versions = prop::option::of(names(&["2", "2.8", "2.8.0", "3"]));
    prop_oneof![
        (comparison.clone(), 0..4_u64).prop_map(|(is, value)| Condition::Cores { is, value }),
        (comparison.clone(), 0..4_u64).prop_map(|(is, value)| Condition::Memory { is, value }),
        (comparison, 0..3_u64).prop_map(|(is, value)| Condition::Gpus { is, value }),
        (equality.clone(), names(&["linux", "macos"])).prop_map(|(is, value)| Condition::System { is, value }),
        (equality.clone(), names(&["x86_64", "aarch64"])).prop_map(|(is, value)| Condition::Arch { is, value }),
        (equality.clone(), names(&["nvidia", "amd"])).prop_map(|(is, value)| Condition::Gpu { is, value }),
        (equality.clone(), names(&["a", "b"])).prop_map(|(is, value)| Condition::Label { is, value }),
        (equality, names(&["p", "q"]), versions).prop_map(|(is, value, at_least)| Condition::Program {
            is,
            value,
            at_least
        }),
    ]
}

fn any_facts() -> impl Strategy<Value = Facts> {
    let names = |names: &[&str]| prop::sample::select(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
    let program = (names(&["p", "q"]), prop::sample::select(vec![None, Version::of("2.8"), Version::of("3.1")]));
    (
        (1..4_u64, 0..4_u64, names(&["linux", "macos", ""]), names(&["x86_64", "aarch64"])),
        prop::collection::vec(names(&["nvidia", "amd"]), 0..3),
        prop::collection::vec(program, 0..3),
        prop::collection::btree_set(names(&["a", "b"]), 0..3),
    )
        .prop_map(|((cores, memory_bytes, system_name, arch), gpus, programs, labels)| Facts {
            cores,
            memory_bytes,
            system_name,
            arch,
            gpus,
            programs,
            labels,
        })
}

proptest! {
    /// Another condition never lets in who was kept out, and a requirement is as strict as its strictest condition.
    #[test]
    fn a_condition_more_never_makes_anybody_eligible(
        conditions in prop::collection::vec(any_condition(), 0..5),
        another in any_condition(),
        place in any::<prop::sample::Index>(),
        by in any_facts(),
    ) {
        let fewer = Requirement(conditions.clone());
        let mut more = conditions;
        more.insert(place.index(more.len() + 1), another.clone());
        let more = Requirement(more);
        prop_assert_eq!(more.is_met(&by), fewer.is_met(&by) && another.holds(&by));
        prop_assert!(fewer.is_met(&by) || !more.is_met(&by));
    }
}
