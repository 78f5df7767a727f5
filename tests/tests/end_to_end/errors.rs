//! What goes wrong for users, and what they are told.

use tidemill_tests::product::{Process, Up, eventually, run};

fn service(name: &str, command: &str, rest: &str) -> String {
    format!("kind: service\nname: {name}\nrun:\n  command: {command}\n{rest}devices: {{kind: [cpu], share: 0.1}}\n")
}

#[test]
fn a_bad_file_names_key_and_line_and_changes_nothing() {
    let up = Up::start("cpu*1");
    let good = service("good", "[sleep, infinity]", "");
    for (bad, key, line) in [
        (
            "kind: service\nname: bad\nreplicas: 3\nrun: {command: [x]}\n",
            "replicas",
            "3",
        ),
        ("kind: service\nname: Bad_Name\nrun: {command: [x]}\n", "name", "2"),
        (
            "kind: service\nname: bad\nrun: {command: [x]}\ndevices: {count: 0}\n",
            "count",
            "4",
        ),
        (
            "kind: service\nname: bad\nrun: {command: [x]}\ndevices: {count: -1}\n",
            "count",
            "4",
        ),
        (
            "kind: service\nname: bad\nrun: {command: [x]}\ndevices: {count: 1e18}\n",
            "count",
            "4",
        ),
        (
            "kind: service\nname: bad\nrun: {command: [x]}\ndevices: {share: .nan}\n",
            "share",
            "4",
        ),
        (
            "kind: service\nname: bad\nrun: {command: [x]}\ndevices: {share: 1.5}\n",
            "share",
            "4",
        ),
        (
            "kind: service\nname: bad\nrun: {command: [x]}\nscale: {min: 5, max: 2}\n",
            "min",
            "4",
        ),
        ("kind: service\nname: bad\n", "run", ""),
        ("kind: [\n", "", ""),
    ] {
        let text = format!("{good}---\n{bad}");
        let ran = run(&up.api, &["apply", "-f", "-"], &text);
        assert_eq!(ran.code, 1, "{bad}\n{}", ran.stderr);
        assert!(ran.stderr.contains(key), "{key} in {}", ran.stderr);
        if !line.is_empty() {
            let number = line.parse::<usize>().unwrap() + good.lines().count() + 1;
            assert!(
                ran.stderr.contains(&number.to_string()),
                "line {number} in {}",
                ran.stderr
            );
        }
    }
    assert!(
        up.list("services").is_empty(),
        "the good document was not applied either"
    );
    let missing = up.run(&["apply", "-f", "no-such-file.yaml"]);
    assert_ne!(missing.code, 0);
    assert!(missing.stderr.contains("no-such-file.yaml"), "{}", missing.stderr);
    let reserved = run(
        &up.api,
        &["apply", "-f", "-"],
        "kind: job\nname: j\nrun: {command: [x]}\n",
    );
    assert_eq!(reserved.code, 1);
    assert!(reserved.stderr.contains("not_yet"), "{}", reserved.stderr);
    let dry = run(&up.api, &["apply", "-f", "-", "--dry-run"], &good).ok();
    assert!(dry.stdout.contains("good") || dry.stderr.contains("good"));
    assert!(up.list("services").is_empty(), "a dry run changes nothing");
}

#[test]
fn a_command_that_cannot_run_backs_off_and_says_why() {
    let up = Up::start("cpu*4");
    let cases = [
        (
            "missing",
            service("missing", "[no-such-program-here]", ""),
            "no-such-program-here",
        ),
        (
            "exits",
            service("exits", "[sh, -c, 'echo out of cheese >&2; exit 3']", ""),
            "3",
        ),
        (
            "never",
            service(
                "never",
                "[sleep, infinity]",
                "  ready: {http: /health, timeout: 2s}\n  stop: {grace: 1s}\n",
            ),
            "ready",
        ),
    ];
    for (name, text, _) in &cases {
        let ran = run(&up.api, &["apply", "-f", "-", "--wait", "1s"], text);
        assert_eq!(ran.code, 3, "{name}: accepted and not placed in time: {}", ran.stderr);
    }
    for (name, _, word) in &cases {
        let failures = eventually("two failures in a row", || {
            let failures = up.service(name)?["failures"].as_u64()?;
            (failures >= 2).then_some(failures)
        });
        assert!(failures <= 6, "{name} backs off: {failures} failures within seconds");
        let explained = up.run(&["explain", name]).ok().stdout;
        assert!(explained.contains(word), "{word} in {explained}");
    }
}

#[test]
fn a_taken_port_and_used_data_are_said_before_anything_is_written() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").to_str().unwrap().to_owned();
    let log = dir.path().join("log");
    let mut up = Process::start(
        &log,
        &["up", "--data", &data, "--listen", &address, "--gateway", "127.0.0.1:0"],
    );
    assert_eq!(up.wait(), Some(1));
    assert!(
        up.log().contains(&address) && up.log().contains("address_in_use"),
        "{}",
        up.log()
    );
    assert!(
        !std::path::Path::new(&data).join("ledger.sqlite").exists(),
        "nothing was written"
    );

    let running = Up::start("cpu*1");
    let data = running.data().to_str().unwrap().to_owned();
    let mut second = Process::start(
        &log,
        &[
            "up",
            "--data",
            &data,
            "--listen",
            "127.0.0.1:0",
            "--gateway",
            "127.0.0.1:0",
        ],
    );
    assert_eq!(second.wait(), Some(5));
    assert!(second.log().contains("data_in_use"), "{}", second.log());
}

#[test]
fn exit_codes_are_those_of_the_contract() {
    let up = Up::start("cpu*1");
    assert_eq!(up.run(&["explain", "no-such-thing"]).code, 4);
    assert_eq!(up.run(&["no-such-verb"]).code, 2);
    assert_eq!(up.run(&["drain", "local"]).code, 1);
    assert_eq!(run("http://127.0.0.1:1", &["nodes"], "").code, 7);
    let wrong = up.run(&[
        "verify",
        "--data",
        up.data().to_str().unwrap(),
        "--against",
        &format!("1:{}", "0".repeat(64)),
    ]);
    assert_eq!(wrong.code, 8, "{}", wrong.stderr);
}
