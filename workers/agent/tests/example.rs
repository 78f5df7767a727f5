//! The example service as a process: up at once, answers in pieces, finishes them when told to leave.

#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

fn start() -> (Child, u16) {
    let mut program = std::env::current_exe().unwrap();
    program.pop();
    program.pop();
    let mut child = Command::new(program.join("examples/agent-under-test"))
        .args(["example-service", "0"])
        .env("TIDEMILL_INSTANCE", "inst-1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let port = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
    (child, port)
}

fn ask(port: u16, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    stream
}

#[test]
fn an_answer_begun_is_finished_after_sigterm() {
    let began = Instant::now();
    let (mut child, port) = start();
    println!("listening after {} ms", began.elapsed().as_millis());
    let mut stream = ask(port, "/chat?tokens=300");
    let mut first = [0; 512];
    let length = stream.read(&mut first).unwrap();
    let mut answer = String::from_utf8_lossy(&first[..length]).into_owned();
    assert!(answer.contains("transfer-encoding: chunked"), "{answer}");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("hello from inst-1:"), "{answer}");
    assert!(answer.contains(" 299\r\n"), "all pieces came");
    assert!(answer.ends_with("0\r\n\r\n"), "and the end");
    assert!(child.wait().unwrap().success());
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
}
