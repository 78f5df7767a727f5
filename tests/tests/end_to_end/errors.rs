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
    assert_eq!(up.run(&["incident", "local"]).code, 1);
    assert_eq!(run("http://127.0.0.1:1", &["nodes"], "").code, 7);
    let wrong = up.run(&[
        "verify",
        "--data",
        up.data().to_str().unwrap(),
        "--against",
        &format!("1:{}", "0".repeat(64)),
    ]);
    assert_eq!(wrong.code, 8, "{}", wrong.stderr);
    let load = up.run(&[
        "load",
        &format!("{}/nobody/", up.gateway),
        "--rps",
        "20",
        "--duration",
        "300ms",
    ]);
    assert_eq!(load.code, 8, "{}", load.stderr);
    assert!(load.stderr.contains("status 404"), "{}", load.stderr);
    assert!(load.stdout.contains("sent"), "it reports all the same: {}", load.stdout);
}

/// Each kind of word that a question can get wrong: refused, with what there is instead of an empty list.
#[test]
fn words_that_mean_nothing_here_are_refused() {
    let up = Up::start("cpu*1");
    let data = up.data();
    let data = data.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 9] = [
        (&["nodes", "--state", "redy"], 2, "joining, ready, suspect"),
        (&["devices", "--state", "ready"], 2, "free, held"),
        (&["services", "--state", "up"], 2, "degraded"),
        (&["instances", "--state", "ready,runing"], 2, "`runing`"),
        (
            &["nodes", "--supply", "moon"],
            2,
            "idc, cloud, enterprise, cafe, pc, partner",
        ),
        (&["services", "--tenant", "nobody"], 4, "there is no tenant `nobody`"),
        (&["instances", "--tenant", "nobody"], 4, "there is no tenant `nobody`"),
        (
            &["nodes", "--at", "2999-01-01T00:00:00Z"],
            4,
            "the ledger's last record is of 20",
        ),
        (&["services", "--at", "2999-01-01T00:00:00Z"], 4, "2999"),
    ];
    for (args, code, part) in cases {
        for source in [&[][..], &["--data", data]] {
            let ran = up.run(&[args, source].concat());
            assert_eq!(ran.code, code, "{args:?} {source:?}: {}", ran.stderr);
            assert!(ran.stderr.contains(part), "{args:?} {source:?}: {}", ran.stderr);
            assert_eq!(ran.stdout, "");
        }
    }
    for args in [
        &["events", "--tenant", "nobody"][..],
        &["logs", "nobody"],
        &["nodes", "--tenant", "default", "--at", "0s"],
    ] {
        assert_ne!(up.run(args).code, 0, "{args:?}");
    }
    for args in [
        &["services", "--tenant", "default"][..],
        &["instances", "--supply", "pc,cafe"],
        &["nodes", "--state", "ready, cordoned", "--at", "0s"],
    ] {
        up.run(args).ok();
    }
    // A log is named, and a server that was named is not quietly another's.
    for args in [&["verify"][..], &["export", "--from", "1", "--to", "2", "slice"]] {
        let ran = up.run(args);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
        assert!(
            ran.stderr.contains("--data DIR") && ran.stderr.contains(&up.api),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn an_agent_with_the_wrong_token_ends_and_says_what_the_token_is_for() {
    let up = Up::start("cpu*1");
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    let made = up.run(&["token", "create", "--role", "node", "--supply", "cloud"]).ok();
    std::fs::write(&token, made.stdout).unwrap();
    let data = dir.path().join("agent");
    let log = dir.path().join("log");
    let node = |supply: &str, token: &std::path::Path| {
        let mut args = vec![
            "agent",
            "--server",
            &up.api,
            "--data",
            data.to_str().unwrap(),
            "--name",
            "n2",
        ];
        args.extend([
            "--provider",
            "p",
            "--region",
            "r",
            "--zone",
            "z",
            "--devices",
            "cpu*1",
            "--supply",
            supply,
        ]);
        args.extend(["--token-file", token.to_str().unwrap()]);
        Process::start(&log, &args)
    };
    let mut refused = node("cafe", &token);
    assert_eq!(refused.wait(), Some(6), "{}", refused.log());
    let said = refused.log();
    assert!(said.contains("`cloud` only") && said.contains("`cafe`"), "{said}");
    let reader = dir.path().join("reader");
    let made = up.run(&["token", "create", "--role", "read-only"]).ok();
    std::fs::write(&reader, made.stdout).unwrap();
    let mut refused = node("cloud", &reader);
    assert_eq!(refused.wait(), Some(6), "{}", refused.log());
    let mut taken = node("cloud", &token);
    eventually("the right one joins", || {
        assert!(taken.runs(), "{}", taken.log());
        up.list("nodes")
            .iter()
            .find(|n| n["name"] == "n2" && n["state"] == "ready")
            .cloned()
    });
}
