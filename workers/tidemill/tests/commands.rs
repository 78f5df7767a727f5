//! The built binary against a small server that answers as a door does: exit codes, streams, formats.
//!
//! What each verb prints is tested next to its code; here it is what a script sees from outside: the exit code, and
//! what goes to stdout and what to stderr. The server answers from a table of paths and keeps what it was sent.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

/// Answers each request by the first entry whose key its request line begins with.
struct Door {
    url: String,
    seen: Arc<Mutex<Vec<String>>>,
}

type Answers = &'static [(&'static str, u16, &'static str)];

impl Door {
    fn with(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                answer(stream, answers, &log);
            }
        });
        Self { url, seen }
    }

    fn run(&self, args: &[&str]) -> Output {
        tidemill(&self.url, args).output().unwrap()
    }

    fn seen(&self) -> String {
        self.seen.lock().unwrap().join("\n")
    }
}

/// A request in, an answer out, connection closed.
fn answer(stream: TcpStream, answers: Answers, log: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        head.push(line.trim_end().to_owned());
    }
    let length = head
        .iter()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let request = head.first().cloned().unwrap_or_default();
    log.lock()
        .unwrap()
        .push(format!("{}\n{}", head.join("\n"), String::from_utf8_lossy(&body)));
    let (status, body) = answers.iter().find(|(start, ..)| request.starts_with(start)).map_or(
        (404, r#"{"code":"not_found","detail":"no such path"}"#),
        |(_, status, body)| (*status, *body),
    );
    let _ = write!(
        &stream,
        "HTTP/1.1 {status} x\r\ncontent-length: {}\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
}

fn tidemill(server: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill"));
    let home = tempfile::tempdir().unwrap();
    command
        .args(args)
        .env_clear()
        .env("TIDEMILL_SERVER", server)
        .env("HOME", home.path());
    command
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn refusals_become_the_contracts_exit_codes() {
    let door = Door::with(&[
        (
            "GET /v1/nodes",
            401,
            r#"{"code":"unauthenticated","detail":"no token","next":"log in","trace_id":"00ff"}"#,
        ),
        (
            "GET /v1/devices",
            503,
            r#"{"code":"no_leader","detail":"no server leads"}"#,
        ),
        (
            "GET /v1/queue",
            429,
            r#"{"code":"overloaded","detail":"too many callers"}"#,
        ),
        (
            "POST /v1/services/~/hello/stop",
            409,
            r#"{"code":"conflict","detail":"it is being deleted"}"#,
        ),
        (
            "GET /v1/doctor",
            200,
            r#"[{"check":"durability","state":"fail","code":"lazy_sync","detail":"d","next":"n"}]"#,
        ),
        ("GET /v1/services", 200, "not json"),
    ]);
    let cases: [(&[&str], i32); 9] = [
        (&["nodes"], 6),
        (&["devices"], 7),
        (&["queue"], 1),
        (&["stop", "service/hello"], 5),
        (&["status", "nobody"], 4),
        (&["doctor"], 8),
        (&["services"], 1),
        (&["nodes", "--tenant", "x"], 2),
        (&["incident", "node-1"], 1),
    ];
    for (args, expected) in cases {
        let output = door.run(args);
        assert_eq!(code(&output), expected, "{args:?}: {}", err(&output));
        if args != ["doctor"] {
            assert_eq!(out(&output), "", "{args:?} wrote to stdout");
        }
    }
    let said = err(&door.run(&["nodes"]));
    assert_eq!(said, "error: no token (trace 00ff) [unauthenticated]\n  next: log in\n");
}

#[test]
fn nobody_there_is_7_and_a_bad_command_line_is_2() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = tidemill(&format!("http://{free}"), &["nodes"]).output().unwrap();
    assert_eq!(code(&output), 7, "{}", err(&output));
    for args in [
        &["frobnicate"][..],
        &[],
        &["scale", "hello"],
        &["apply"],
        &["events", "--seq", "-1"],
    ] {
        let output = tidemill("http://127.0.0.1:1", args).output().unwrap();
        assert_eq!(code(&output), 2, "{args:?}: {}", err(&output));
    }
    let output = tidemill("http://127.0.0.1:1", &["apply", "-f", "missing.yaml"])
        .output()
        .unwrap();
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("missing.yaml") && err(&output).contains("[file_unreadable]"));
}

#[test]
fn without_a_server_the_doctor_says_so_and_looks_at_what_is_here() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("tidemill");
    let doctor = || {
        let mut command = tidemill(&format!("http://{free}"), &["doctor", "-o", "csv", "--no-headers"]);
        let output = command.env("XDG_DATA_HOME", home.path()).output().unwrap();
        assert_eq!(code(&output), 7, "{}", err(&output));
        assert!(err(&output).contains("tidemill up"), "{}", err(&output));
        out(&output)
    };
    let said = doctor();
    assert!(said.starts_with("server,fail,unreachable,"), "{said}");
    assert!(said.contains("ledger here,unknown,ledger_missing,"), "{said}");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("endpoints.json"), r#"{"api":"http://127.0.0.1:9"}"#).unwrap();
    std::fs::write(data.join("ledger.sqlite"), "no ledger").unwrap();
    let said = doctor();
    assert!(said.contains("server,warn,another_server,"), "{said}");
    assert!(said.contains("--server http://127.0.0.1:9"), "{said}");
    assert!(said.contains("ledger here,fail,"), "{said}");
}

#[test]
fn a_file_that_holds_no_ledger_fails_the_check() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slice.tidemill");
    let verify = |flag: &str, path: &std::path::Path| {
        let output = tidemill("http://127.0.0.1:1", &["verify", flag, path.to_str().unwrap()]).output();
        let output = output.unwrap();
        (code(&output), err(&output))
    };
    let mut cut = b"SQLite format 3\0".to_vec();
    cut.extend([7; 300]);
    for content in [&b""[..], b"no ledger at all", &cut] {
        std::fs::write(&file, content).unwrap();
        std::fs::write(dir.path().join("ledger.sqlite"), content).unwrap();
        for (flag, path) in [("--file", file.as_path()), ("--data", dir.path())] {
            let (code, said) = verify(flag, path);
            assert_eq!(code, 8, "{flag} {content:?}: {said}");
        }
    }
    let (code, said) = verify("--file", &dir.path().join("none"));
    assert_eq!(code, 4, "{said}");
    let (code, said) = verify("--file", dir.path());
    assert_eq!(code, 2, "{said}");
}

#[test]
fn what_is_no_workload_file_is_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let large = dir.path().join("large");
    std::fs::write(&large, vec![b'a'; (1 << 20) + 1]).unwrap();
    for (path, code_word) in [(dir.path(), "[file_unreadable]"), (large.as_path(), "[too_large]")] {
        let output = tidemill("http://127.0.0.1:1", &["apply", "-f", path.to_str().unwrap()]).output();
        let output = output.unwrap();
        assert_eq!(code(&output), 1, "{}", err(&output));
        assert!(err(&output).contains(code_word), "{}", err(&output));
    }
}

#[test]
fn apply_sends_the_file_as_it_is_and_waits() {
    let door = Door::with(&[
        (
            "POST /v1/apply?dry_run=false",
            200,
            r#"{"sequence":9,"changes":[{"kind":"service","tenant":"default","name":"hello","action":"created","sentence":"2 replicas"}],"warnings":["env: KEY looks like a secret"]}"#,
        ),
        (
            "GET /v1/services?min_seq=9",
            200,
            r#"[{"name":"hello","tenant":"default","desired":2,"ready":1,"state":"pending","reason":"r"}]"#,
        ),
        (
            "GET /v1/explain/hello?tenant=default",
            200,
            r#"{"reason":"no device is free"}"#,
        ),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hello.yaml");
    std::fs::write(&file, "kind: service\nname: hello # as it is\n").unwrap();
    let output = door.run(&["apply", "-f", file.to_str().unwrap(), "--wait", "300ms"]);
    assert_eq!(code(&output), 3, "{}", err(&output));
    assert_eq!(out(&output), "service/hello created: 2 replicas\n");
    assert!(
        err(&output).contains("warning: env: KEY looks like a secret"),
        "{}",
        err(&output)
    );
    assert!(
        err(&output).contains("service/hello: 1 of 2 ready: no device is free"),
        "{}",
        err(&output)
    );
    let seen = door.seen();
    assert!(seen.contains("kind: service\nname: hello # as it is\n"), "{seen}");
    assert!(
        seen.contains("content-type: application/yaml") && seen.contains("idempotency-key: "),
        "{seen}"
    );
}

#[test]
fn formats_and_tokens() {
    let door = Door::with(&[
        (
            "GET /v1/nodes?state=ready",
            200,
            r#"[{"id":"node-a","name":"gpu-1","state":"ready","supply":"idc","provider":"own","region":"east","devices":8,"free_devices":3,"reason":"","extra":1}]"#,
        ),
        (
            "POST /v1/tokens",
            200,
            r#"{"sequence":3,"id":"tok-1","token":"tm_secret","role":"node"}"#,
        ),
    ]);
    let list = |format: &str| out(&door.run(&["nodes", "--state", "ready", "-o", format]));
    assert_eq!(
        list("csv"),
        "name,id,state,supply,provider,region,devices,free_devices,reason\ngpu-1,node-a,ready,idc,own,east,8,3,\n"
    );
    assert!(list("json").contains("\"extra\": 1"));
    assert!(
        list("table").starts_with("NAME   ID      STATE  SUPPLY"),
        "{}",
        list("table")
    );
    assert!(!list("table").contains('\u{1b}'), "colour in a pipe");
    let output = door.run(&["--token", "mine", "token", "create", "--role", "node", "--ttl", "1h"]);
    assert_eq!(out(&output), "tm_secret\n", "{}", err(&output));
    let seen = door.seen();
    assert!(
        seen.contains("authorization: Bearer mine") && seen.contains("\"ttl_ms\":3600000"),
        "{seen}"
    );
}

#[test]
fn a_reader_that_went_away_is_silent() {
    let mut child = tidemill("http://127.0.0.1:1", &["completion", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((code(&output), err(&output)), (0, String::new()));
}
