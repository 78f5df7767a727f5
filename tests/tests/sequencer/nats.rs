//! Candidates in several processes on a real nats-server: the leader dies, hangs, says goodbye; the stream vanishes.

use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidemill_bus::commands::Commands;
use tidemill_bus::jetstream::{JetStreamLedger, Nats, StreamLimits};
use tidemill_bus::ledger::Ledger;
use tidemill_bus::remote::{NatsTransport, RemoteCommands};
use tidemill_bus::sequencer::{Candidate, CandidateHandle, Role, SequencerConfig};
use tidemill_tests::nats::NatsServer;
use tokio_util::sync::CancellationToken;

use crate::support::{SOON, ask, genesis, id, make_token, numbered, read_all, times};

const URL: &str = "TIDEMILL_TEST_NATS";
const NAME: &str = "TIDEMILL_TEST_NAME";

/// A candidate in a process of its own: this test binary again, running [`child`].
struct Process(Child);

impl Process {
    fn start(server: &NatsServer, name: &str) -> Self {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "nats::child", "--ignored"])
            .env(URL, server.url())
            .env(NAME, name)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().try_into().unwrap()), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
#[ignore = "the other process of the tests below, which start it"]
async fn child() {
    let (Ok(url), Ok(name)) = (std::env::var(URL), std::env::var(NAME)) else {
        return;
    };
    let (_, candidate, shutdown) = candidate(&url, &name).await;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
    terminate.recv().await;
    shutdown.cancel();
    candidate.ended().await;
}

async fn candidate(url: &str, name: &str) -> (Arc<JetStreamLedger>, CandidateHandle, CancellationToken) {
    let nats = Nats::connect(url, name, vec![]).await.unwrap();
    let ledger = Arc::new(JetStreamLedger::open(&nats, &genesis().cell).await.unwrap());
    let transport = NatsTransport::new(&nats, &genesis().cell);
    let shutdown = CancellationToken::new();
    let config = SequencerConfig::in_memory(name);
    let handle = Candidate::start(config, ledger.clone(), Some(transport), shutdown.clone()).unwrap();
    (ledger, handle, shutdown)
}

/// A server with an empty ledger, and a client.
async fn cell() -> (NatsServer, Nats, RemoteCommands) {
    let server = NatsServer::start().await;
    let nats = Nats::connect(&server.url(), "test", vec![]).await.unwrap();
    JetStreamLedger::create(&nats, &genesis(), &StreamLimits::default())
        .await
        .unwrap();
    let commands = RemoteCommands::new(&NatsTransport::new(&nats, &genesis().cell));
    (server, nats, commands)
}

async fn until_leader_is(handle: &CandidateHandle, name: &str) {
    let mut status = handle.status();
    let wait = status.wait_for(|s| s.leader == name);
    tokio::time::timeout(SOON, wait)
        .await
        .unwrap_or_else(|_| panic!("{name} leads: {handle:?}"))
        .unwrap();
}

/// Waits until some more records are on the ledger: the stream of commands flows.
async fn until_more(handle: &CandidateHandle) {
    let mut status = handle.status();
    let from = status.borrow().sequence;
    let wait = status.wait_for(|s| s.sequence >= from + 25);
    tokio::time::timeout(SOON, wait)
        .await
        .expect("records in time")
        .unwrap();
}

/// Submits numbered commands, one after another, until told to stop; returns how many, and the longest wait.
async fn stream(commands: RemoteCommands, from: u64, stop: CancellationToken) -> (u64, Duration) {
    let (mut n, mut longest) = (from, Duration::ZERO);
    while !stop.is_cancelled() {
        let asked = Instant::now();
        commands
            .submit(numbered(n))
            .await
            .unwrap_or_else(|error| panic!("command {n}: {error}"));
        longest = longest.max(asked.elapsed());
        n += 1;
    }
    (n, longest)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_killed_under_a_stream_of_commands_and_none_is_lost_or_doubled() {
    let (server, nats, commands) = cell().await;
    let leader = Process::start(&server, "first");
    commands.submit(numbered(0)).await.unwrap();
    let (ledger, standby, shutdown) = candidate(&server.url(), "second").await;
    until_leader_is(&standby, "first").await;

    let stop = CancellationToken::new();
    let callers: Vec<_> = (1..5)
        .map(|n| tokio::spawn(stream(commands.clone(), n * 1_000_000, stop.clone())))
        .collect();
    // tidy: waits for commands to be under way; how many does not matter
    until_more(&standby).await;
    leader.signal(Signal::SIGKILL);
    until_leader_is(&standby, "second").await;
    // Through the standby's own handle too, which now decides by itself.
    let again = standby.submit(numbered(0)).await.unwrap();
    assert!(again.repeated, "a retry after a change of leader gets the first answer");
    assert_eq!(
        standby.submit(ask(id(0), make_token(77))).await.unwrap_err().code(),
        "command_conflict"
    );
    // tidy: waits for commands after the change of leader; how many does not matter
    until_more(&standby).await;
    stop.cancel();

    let mut asked = vec![0];
    for (caller, from) in callers.into_iter().zip((1..5).map(|n| n * 1_000_000)) {
        let (until, longest) = caller.await.unwrap();
        assert!(longest < Duration::from_secs(5), "a caller waited {longest:?}");
        asked.extend(from..until);
    }
    let (fold, commits) = read_all(&*ledger).await;
    assert_eq!(fold.state().cell.epoch, 2);
    assert_eq!(fold.state().credentials.len(), asked.len());
    asked
        .iter()
        .for_each(|n| assert_eq!(times(&commits, id(*n)), 1, "command {n}"));
    shutdown.cancel();
    standby.ended().await;
    drop(nats);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_hung_and_wakes_has_been_fenced_off() {
    let (server, _nats, commands) = cell().await;
    let leader = Process::start(&server, "first");
    commands.submit(numbered(0)).await.unwrap();
    let (ledger, standby, shutdown) = candidate(&server.url(), "second").await;
    until_leader_is(&standby, "first").await;
    leader.signal(Signal::SIGSTOP);
    until_leader_is(&standby, "second").await;
    standby.submit(numbered(1)).await.unwrap();
    leader.signal(Signal::SIGCONT);
    for n in 2..100 {
        commands.submit(numbered(n)).await.unwrap();
    }
    let (fold, commits) = read_all(&*ledger).await;
    assert_eq!(fold.state().cell.leader, "second");
    (0..100).for_each(|n| assert_eq!(times(&commits, id(n)), 1, "command {n}"));
    shutdown.cancel();
    standby.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_says_goodbye_is_followed_at_once() {
    let (server, _nats, commands) = cell().await;
    let (_, first, first_shutdown) = candidate(&server.url(), "first").await;
    assert!(first.wait_until_leading(SOON).await);
    let (ledger, second, second_shutdown) = candidate(&server.url(), "second").await;
    until_leader_is(&second, "first").await;
    second.submit(numbered(1)).await.unwrap();
    first_shutdown.cancel();
    first.ended().await;
    let left = Instant::now();
    commands.submit(numbered(2)).await.unwrap();
    assert!(left.elapsed() < Duration::from_secs(2), "{:?}", left.elapsed());
    assert_eq!(times(&read_all(&*ledger).await.1, id(2)), 1);
    second_shutdown.cancel();
    second.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_keeps_the_leader_and_loses_nothing() {
    let (mut server, _nats, commands) = cell().await;
    let (ledger, leader, shutdown) = candidate(&server.url(), "first").await;
    assert!(leader.wait_until_leading(SOON).await);
    let stop = CancellationToken::new();
    let caller = tokio::spawn(stream(commands.clone(), 0, stop.clone()));
    // tidy: waits for commands to be under way; how many does not matter
    until_more(&leader).await;
    server.restart().await;
    assert!(leader.wait_until_leading(SOON).await);
    commands.submit(numbered(u64::MAX)).await.unwrap();
    stop.cancel();
    let (until, _) = caller.await.unwrap();
    let (_, commits) = read_all(&*ledger).await;
    (0..until).for_each(|n| assert_eq!(times(&commits, id(n)), 1, "command {n}"));
    shutdown.cancel();
    leader.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_stream_raises_the_alarm_and_stays_deleted() {
    let (server, _nats, commands) = cell().await;
    let (ledger, leader, shutdown) = candidate(&server.url(), "first").await;
    commands.submit(numbered(0)).await.unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    jetstream.delete_stream("LEDGER_main").await.unwrap();
    let error = commands.submit(numbered(1)).await.unwrap_err();
    assert!(
        error.code() == "ledger_missing" || error.code() == "no_leader",
        "{error}"
    );
    let mut status = leader.status();
    let wait = status.wait_for(|s| matches!(&s.role, Role::ReadOnly { code, .. } if code == "ledger_missing"));
    tokio::time::timeout(SOON, wait)
        .await
        .expect("the alarm in time")
        .unwrap();
    assert_eq!(leader.submit(numbered(2)).await.unwrap_err().code(), "ledger_missing");
    assert!(ledger.tail().await.is_err());
    assert!(
        jetstream.get_stream("LEDGER_main").await.is_err(),
        "nobody made it again"
    );
    shutdown.cancel();
    leader.ended().await;
}
