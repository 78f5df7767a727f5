//! The workload file: what is taken, what is refused, and that the refusal names key and line.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tidemill_domain::events::node::{DeviceKind, Supply};
use tidemill_domain::events::service::{Class, Retry, Spread};
use tidemill_domain::time::Span;
use tidemill_domain::unit::{Milli, Name};
use tidemill_door::workload::{MAX_INPUT_BYTES, parse, parse_for};

const WHOLE: &str = "\
kind: service
name: chat                   # a DNS label
tenant: acme
class: critical
run:
  runtime: process
  command: [python3, serve.py, --port, $PORT, 1.10, yes]
  env: {MODEL: small, VERSION: 1.10, DEBUG: true}
  ready: {http: /health, timeout: 1h30m}
  stop: {grace: 45s}
devices: {count: 1, kind: [cuda, rocm, ascend, cpu], model: [A100-80G], memory: 40GiB, share: 0.5}
scale: {min: 1, max: 20, target: {concurrency: 8}}
placement: {supply: [idc, cloud], region: [east], spread: provider}
route: {host: chat.example.com, retry: any}
";

#[test]
fn everything_of_this_release_is_read() {
    let found = parse(WHOLE).unwrap();
    assert!(found.warnings.is_empty());
    let [service] = found.services.as_slice() else { panic!() };
    assert_eq!((service.tenant.as_str(), service.name.as_str()), ("acme", "chat"));
    let spec = &service.spec;
    assert_eq!(spec.class, Class::Critical);
    assert_eq!(
        spec.run.command,
        ["python3", "serve.py", "--port", "$PORT", "1.10", "yes"],
        "words keep their spelling"
    );
    assert_eq!(spec.run.env["VERSION"], "1.10");
    assert_eq!(spec.run.env["DEBUG"], "true");
    assert_eq!(spec.run.ready_http.as_deref(), Some("/health"));
    assert_eq!(spec.run.ready_timeout, Span::from_secs(5400));
    assert_eq!(spec.run.stop_grace, Span::from_secs(45));
    assert_eq!(
        spec.devices.kinds,
        [DeviceKind::Cuda, DeviceKind::Rocm, DeviceKind::Ascend, DeviceKind::Cpu]
    );
    assert_eq!((spec.devices.memory_bytes, spec.devices.share), (40 << 30, Milli(500)));
    assert_eq!(
        (spec.scale.min, spec.scale.max, spec.scale.concurrency),
        (1, 20, Some(8))
    );
    assert_eq!(spec.placement.supply, [Supply::Idc, Supply::Cloud]);
    assert_eq!(
        (spec.placement.spread, spec.route.retry),
        (Spread::Provider, Retry::Any)
    );
}

#[test]
fn defaults() {
    let found = parse("{\"kind\": \"service\", \"name\": \"a\", \"run\": {\"command\": [\"true\"]}}").unwrap();
    let service = &found.services[0];
    let spec = &service.spec;
    assert_eq!(service.tenant.as_str(), "default");
    assert_eq!((spec.scale.min, spec.scale.max, spec.scale.concurrency), (1, 20, None));
    assert_eq!((spec.devices.count, spec.devices.share), (1, Milli::WHOLE));
    assert!(spec.devices.kinds.is_empty() && spec.devices.models.is_empty());
    assert_eq!(spec.placement.supply, [Supply::Idc, Supply::Cloud, Supply::Enterprise]);
    assert_eq!(
        (spec.run.ready_timeout, spec.run.stop_grace),
        (Span::from_secs(300), Span::from_secs(30))
    );
    assert_eq!(
        (spec.placement.spread, spec.route.retry),
        (Spread::Node, Retry::Idempotent)
    );
    let wide = parse("kind: service\nname: wide\nrun: {command: [true]}\nscale: {min: 1000}\n").unwrap();
    assert_eq!(wide.services[0].spec.scale.max, 1000);
}

/// A document around the given lines, which begin at line 4.
fn with(lines: &str) -> String {
    format!("kind: service\nname: a\nrun: {{command: [x]}}\n{lines}\n")
}

/// (what is added at line 4, code, key, line, part of the sentence)
const REFUSED: &[(&str, &str, &str, u64, &str)] = &[
    ("replicas: 3", "invalid", "replicas", 4, "did you mean `scale`?"),
    ("devcies: {}", "invalid", "devcies", 4, "did you mean `devices`?"),
    ("zzzzzzz: 1", "invalid", "zzzzzzz", 4, "known here are"),
    (
        "devices:\n  count: 0",
        "invalid",
        "devices.count",
        5,
        "0 is out of range: 1 to 64",
    ),
    (
        "devices:\n  count: -1",
        "invalid",
        "devices.count",
        5,
        "-1 is out of range",
    ),
    (
        "devices: {count: 1e18}",
        "invalid",
        "devices.count",
        4,
        "1e18 is out of range",
    ),
    (
        "devices: {count: 1000000000000000000}",
        "invalid",
        "devices.count",
        4,
        "out of range",
    ),
    (
        "devices: {count: 1.5}",
        "invalid",
        "devices.count",
        4,
        "not a whole number",
    ),
    (
        "devices: {count: .nan}",
        "invalid",
        "devices.count",
        4,
        "not a whole number",
    ),
    ("devices: {count: many}", "invalid", "devices.count", 4, "`many`"),
    (
        "devices: {share: 1.5}",
        "invalid",
        "devices.share",
        4,
        "1.5 is out of range",
    ),
    ("devices: {share: 0}", "invalid", "devices.share", 4, "out of range"),
    ("devices: {share: .nan}", "invalid", "devices.share", 4, "out of range"),
    ("devices: {share: -0.5}", "invalid", "devices.share", 4, "out of range"),
    (
        "devices: {share: 0.0001}",
        "invalid",
        "devices.share",
        4,
        "multiple of 0.001",
    ),
    (
        "devices: {count: 2, share: 0.5}",
        "invalid",
        "devices.share",
        4,
        "one device",
    ),
    (
        "devices: {kind: [cuda, gpu]}",
        "invalid",
        "devices.kind",
        4,
        "none of cuda, rocm",
    ),
    ("devices: {memory: 40Gib}", "invalid", "devices.memory", 4, "40GiB"),
    (
        "devices: {memory: 99999999999999TiB}",
        "invalid",
        "devices.memory",
        4,
        "not a size",
    ),
    (
        "scale: {min: 5,\n  max: 2}",
        "invalid",
        "scale.min",
        4,
        "5 is above scale.max = 2",
    ),
    ("scale: {min: .inf}", "invalid", "scale.min", 4, "out of range"),
    ("scale: {max: 0}", "invalid", "scale.max", 4, "out of range: 1 to"),
    (
        "scale: {target: {concurrency: 0}}",
        "invalid",
        "scale.target.concurrency",
        4,
        "out of range",
    ),
    (
        "scale: {target: {rps: 0}}",
        "invalid",
        "scale.target.rps",
        4,
        "unknown key",
    ),
    ("scale: 3", "invalid", "scale", 4, "takes a mapping"),
    (
        "placement: {supply: []}",
        "invalid",
        "placement.supply",
        4,
        "allows nothing",
    ),
    (
        "placement: {supply: [idc, moon]}",
        "invalid",
        "placement.supply",
        4,
        "`moon`",
    ),
    ("route: {host: Chat.Example}", "invalid", "route.host", 4, "host name"),
    ("class: urgent", "invalid", "class", 4, "critical, standard"),
    ("tenant: A_B", "invalid", "tenant", 4, "not a name"),
    ("class: spot", "not_yet", "class", 4, "not there yet"),
    (
        "scale: {min: 1, max: 3, standby: 4}",
        "invalid",
        "scale.standby",
        4,
        "3",
    ),
    (
        "scale: {singleton: false}",
        "not_yet",
        "scale.singleton",
        4,
        "not there yet",
    ),
    (
        "scale: {forecast: auto}",
        "not_yet",
        "scale.forecast",
        4,
        "not there yet",
    ),
    (
        "scale:\n  min: 1\n  schedule: []",
        "not_yet",
        "scale.schedule",
        6,
        "not there yet",
    ),
    ("on_isolation: stop", "not_yet", "on_isolation", 4, "not there yet"),
    ("name: b", "invalid", "name", 4, "stands twice"),
];

#[test]
fn refusals_name_key_and_line() {
    for (lines, code, key, line, part) in REFUSED {
        let error = parse(&with(lines)).expect_err(lines);
        assert_eq!((error.code, error.line), (*code, *line), "{lines}: {error}");
        assert_eq!(&error.key, key, "{lines}: {error}");
        assert!(error.to_string().contains(part), "{lines}: {error}");
    }
}

#[test]
fn refusals_of_the_run_part() {
    let cases: &[(&str, &str, &str, u64, &str)] = &[
        ("run: {}", "invalid", "run.command", 3, "missing"),
        ("run: {command: []}", "invalid", "run.command", 3, "names no program"),
        ("run: {command: serve.py}", "invalid", "run.command", 3, "takes a list"),
        ("run: {command: [x, [y]]}", "invalid", "run.command", 3, "takes a text"),
        ("run: {cmd: [x]}", "invalid", "run.cmd", 3, "did you mean `command`?"),
        (
            "run:\n  command: [x]\n  image: a/b:1",
            "invalid",
            "run.image",
            5,
            "runtime: docker",
        ),
        (
            "run:\n  command: [x]\n  runtime: docker",
            "invalid",
            "run.image",
            3,
            "needs one",
        ),
        (
            "run:\n  runtime: docker\n  image: a b",
            "invalid",
            "run.image",
            5,
            "not the name of an image",
        ),
        (
            "run: {command: [x], limits: {processes: 0}}",
            "invalid",
            "run.limits.processes",
            3,
            "",
        ),
        (
            "run:\n  command: [x]\n  fetch: []",
            "not_yet",
            "run.fetch",
            5,
            "not there yet",
        ),
        (
            "run: {command: [x], runtime: wasm}",
            "invalid",
            "run.runtime",
            3,
            "none of process",
        ),
        (
            "run: {command: [x], ready: {timeout: 5}}",
            "invalid",
            "run.ready.timeout",
            3,
            "such as 30s or 5m",
        ),
        (
            "run: {command: [x], ready: {timeout: 0s}}",
            "invalid",
            "run.ready.timeout",
            3,
            "out of range",
        ),
        (
            "run:\n  command: [x]\n  ready: {http: health}",
            "invalid",
            "run.ready.http",
            5,
            "begins with /",
        ),
        (
            "run: {command: [x], stop: {grace: 300d}}",
            "invalid",
            "run.stop.grace",
            3,
            "at most 24h",
        ),
        (
            "run:\n  command: [x]\n  env:\n    A:",
            "invalid",
            "run.env.A",
            6,
            "no value",
        ),
        (
            "run:\n  command: [x]\n  env:\n    A: [1]",
            "invalid",
            "run.env.A",
            6,
            "takes a text",
        ),
    ];
    for (lines, code, key, line, part) in cases {
        let error = parse(&format!("kind: service\nname: a\n{lines}\n")).expect_err(lines);
        assert_eq!(
            (error.code, error.key.as_str(), error.line),
            (*code, *key, *line),
            "{lines}: {error}"
        );
        assert!(error.to_string().contains(part), "{lines}: {error}");
    }
}

#[test]
fn refusals_of_whole_files() {
    let cases: &[(&str, &str, u64, &str)] = &[
        ("", "invalid", 0, "no document"),
        ("---\n---\n", "invalid", 0, "no document"),
        ("just text", "invalid", 1, "kind: service"),
        ("- a\n- b", "invalid", 1, "a list"),
        ("name: a", "invalid", 1, "`kind` at line 1: it is missing"),
        (
            "kind: service\nrun: {command: [x]}",
            "invalid",
            1,
            "`name` at line 1: it is missing",
        ),
        (
            "kind: service\nname: Big\nrun: {command: [x]}",
            "invalid",
            2,
            "not a name",
        ),
        ("kind: service\nname:\nrun: {command: [x]}", "invalid", 2, "no value"),
        ("kind: job\nname: a", "not_yet", 1, "jobs"),
        ("kind: pod\nname: a", "invalid", 1, "`pod`"),
        ("kind: service\nname: a\n  run: [", "invalid", 3, "not YAML"),
        (
            "kind: service\nname: a\nrun: {command: [x]}\n---\nkind: service\nname: a\nrun: {command: [y]}",
            "invalid",
            6,
            "declared twice, first at line 2",
        ),
        (
            "kind: service\nname: a\nrun: {command: [x]}\n---\nkind: service\nname: b\nrun: {command: [y]}\nscale: {min: -1}",
            "invalid",
            8,
            "scale.min",
        ),
    ];
    for (text, code, line, part) in cases {
        let error = parse(text).expect_err(text);
        assert_eq!((error.code, error.line), (*code, *line), "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
    assert!(
        parse(&"a".repeat(MAX_INPUT_BYTES + 1))
            .unwrap_err()
            .to_string()
            .contains("at most")
    );
    let many: String = (0..65)
        .map(|i| format!("kind: service\nname: s{i}\nrun: {{command: [x]}}\n---\n"))
        .collect();
    assert!(parse(&many).unwrap_err().to_string().contains("more than 64"));
    let long = format!("kind: service\nname: a\nrun: {{command: [x, {}]}}", "y".repeat(40_000));
    assert!(parse(&long).unwrap_err().to_string().contains("32768"));
}

/// Each slip that YAML does not take is told in a file's own words: on its line, and without the parser's.
#[test]
fn slips_are_told_in_the_files_words() {
    let cases: &[(&str, u64, &str)] = &[
        ("kind: service\nname: a\nrun: {command: [x}\n", 3, "not closed"),
        (
            "kind: service\nname: a\nrun: {command: [x], env: {A: b}\n",
            0,
            "not closed",
        ),
        ("kind: service\nname: \"a\n", 0, "quoted text"),
        (
            "kind: service\nname: a\nname: b\n",
            3,
            "`name` at line 3: the key stands twice",
        ),
        ("kind: service\nname: a\nrun:\n\tcommand: [x]\n", 4, "tab"),
        (
            "kind: service\nname: a\nrun: {command: [x]}\n  class: standard\n",
            4,
            "",
        ),
        ("kind: service\nname: a\nclass: *nobody\n", 3, "alias"),
        ("kind: service\nname: a\nclass: !!int standard\n", 3, ""),
        ("kind: service\nname a\nrun: {command: [x]}\n", 0, ""),
        ("kind: service\n? [a, b]\n: c\n", 0, ""),
        ("\u{0}\u{1}\u{2}\u{3}", 0, ""),
        ("%YAML 9.9\n---\nkind: service\n", 0, ""),
        ("@at\n", 1, ""),
    ];
    for (text, line, part) in cases {
        let error = parse(text).expect_err(text);
        let said = error.to_string();
        if *line > 0 {
            assert_eq!(error.line, *line, "{text:?}: {said}");
        }
        assert!(said.contains(part), "{text:?}: {said}");
        for word in [
            "while parsing",
            "serde",
            "saphyr",
            "deserial",
            "expected <",
            "Location",
            "budget",
            "token",
        ] {
            assert!(!said.contains(word), "{text:?}: {said}");
        }
    }
    let deep = format!("kind: service\nname: {}a{}\n", "[".repeat(40), "]".repeat(40));
    assert!(parse(&deep).unwrap_err().to_string().contains("deeper than 32"));
    let wide = format!("kind: service\nname: [{}]\n", "a, ".repeat(200_000));
    assert!(
        parse(&wide)
            .unwrap_err()
            .to_string()
            .contains("more than 100000 values")
    );
}

#[test]
fn a_file_without_tenant_is_its_owners() {
    let own: Name = "acme".parse().unwrap();
    let text = "kind: service\nname: a\nrun: {command: [x]}\n---\nkind: service\nname: b\ntenant: other\nrun: {command: [x]}\n";
    let services = parse_for(text, &own).unwrap().services;
    let tenants: Vec<&str> = services.iter().map(|s| s.tenant.as_str()).collect();
    assert_eq!(tenants, ["acme", "other"]);
}

#[test]
fn the_contracts_example_is_refused_key_by_key_for_what_is_reserved() {
    let text = "\
kind: service
name: chat
tenant: acme
class: standard
run:
  runtime: docker
  command: [python3, serve.py, --port, $PORT]
  image: registry/chat:1
  env: {MODEL: small}
  fetch: [{url: https://example.com/weights.bin, blake3: aa, to: weights.bin}]
  ready: {http: /health, timeout: 5m}
  stop: {grace: 30s}
devices: {count: 1, kind: [cuda, rocm, ascend, cpu], model: [A100-80G], memory: 40GiB, share: 0.5}
scale: {min: 1, max: 20, target: {concurrency: 8}, standby: 1}
placement: {supply: [idc, cloud], region: [east], spread: provider}
route: {host: chat.example.com, retry: idempotent}
on_isolation: stop
---
kind: job
name: finetune
workers: {min: 2, max: 8}
";
    // Each refusal is answered by leaving the line out, until the file is taken.
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut refused = Vec::new();
    while let Err(error) = parse(&lines.join("\n")) {
        assert_eq!(error.code, "not_yet", "{error}");
        refused.push(error.key.clone());
        let line = error.line as usize - 1;
        match error.key.as_str() {
            "kind" => lines.truncate(line),
            _ => {
                lines.remove(line);
            }
        }
    }
    assert_eq!(refused, ["on_isolation", "run.fetch", "kind"]);
    let found = parse(&lines.join("\n")).unwrap().services;
    assert_eq!((found.len(), found[0].spec.scale.standby), (1, 1));
}

#[test]
fn secrets_in_the_environment_draw_a_warning() {
    let found = parse(
        "kind: service\nname: a\nrun:\n  command: [x]\n  env:\n    API_KEY: k\n    HF_TOKEN: t\n    MAX_TOKENS: 5\n    TOKENIZER: x\n    db-password: y\n",
    )
    .unwrap();
    let lines: Vec<bool> = ["line 6", "line 7", "line 10"]
        .iter()
        .map(|line| found.warnings.iter().any(|w| w.contains(line)))
        .collect();
    assert_eq!(
        (found.warnings.len(), lines),
        (3, vec![true; 3]),
        "{:?}",
        found.warnings
    );
}

#[test]
fn aliases_do_not_multiply() {
    let mut text = "kind: service\nname: a\nx0: &x0 [a, a, a, a, a, a, a, a, a, a]\n".to_owned();
    for i in 1..12 {
        let refs = vec![format!("*x{}", i - 1); 10].join(", ");
        text.push_str(&format!("x{i}: &x{i} [{refs}]\n"));
    }
    parse(&text).unwrap_err();
    parse(&"[".repeat(100_000)).unwrap_err();
    parse(&"{a: ".repeat(10_000)).unwrap_err();
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(text in "\\PC{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn broken_files_are_errors_or_services(cut in 0usize..WHOLE.len(), drop in 0usize..40, insert in "[-:{}\\[\\]&*!|>'\"%@`#,? \n\ta-z0-9.]{0,12}") {
        let mut text = WHOLE.to_owned();
        let end = (cut + drop).min(text.len());
        text.replace_range(cut..end, &insert);
        if let Err(error) = parse(&text) {
            prop_assert!(!error.reason.is_empty());
            prop_assert!(error.line as usize <= text.lines().count() + 1, "{}", error);
        }
    }

    #[test]
    fn every_number_is_taken_or_refused(count in any::<f64>(), share in any::<f64>(), min in any::<i64>()) {
        let text = with(&format!("devices: {{count: {count}, share: {share}}}\nscale: {{min: {min}}}"));
        if let Ok(found) = parse(&text) {
            let spec = &found.services[0].spec;
            prop_assert!((1..=64).contains(&spec.devices.count));
            prop_assert!((1..=1000).contains(&spec.devices.share.0));
        }
    }
}
