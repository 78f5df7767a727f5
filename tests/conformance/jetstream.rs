//! What only JetStream can suffer.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::client::Request;
use tidemill_bus::jetstream::{JetStreamLedger, Nats, StreamLimits};
use tidemill_bus::ledger::{AppendError, FindingState, Hints, Ledger, ReadError};
use tidemill_tests::nats::{NatsOptions, NatsServer};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use crate::fixture::{admin, context, create, damage_blocks, genesis};
use crate::proxy::Proxy;
use crate::writer::{PATIENCE, append, append_surely, check, fill, note, record};

/// Why one in flight: the expected sequence is a number, so behind a foreign record the second of two in flight is let
/// through. The first is refused, the second stored, and the writer's history has a hole.
#[tokio::test]
async fn two_in_flight_would_leave_a_hole() {
    let server = NatsServer::start().await;
    let ledger = create(&server.url(), 1).await;
    let base = append(&ledger, "base").await.unwrap();
    let first = note(base, "first of two");
    let second = note(first.anchor, "second of two");
    append(&ledger, "foreign").await.unwrap();

    let client = context(&server.url()).await.client();
    let publish = |expected: u64, record: &tidemill_bus::record::SealedRecord| {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Last-Sequence", expected.to_string());
        client.send_request(
            "tidemill.main.ledger",
            Request::new().headers(headers).payload(record.bytes.clone()),
        )
    };
    let (one, two) = tokio::join!(publish(1, &first), publish(2, &second));
    assert!(
        String::from_utf8_lossy(&one.unwrap().payload).contains("10071"),
        "the first is refused"
    );
    assert!(
        String::from_utf8_lossy(&two.unwrap().payload).contains(r#""seq":3"#),
        "the second is stored"
    );
    // What keeps the damage from spreading: the second does not follow the foreign record's hash.
    let broken = check(&ledger).await.unwrap_err();
    assert_eq!((broken.first_bad_sequence(), broken.code()), (Some(3), "ledger_forked"));
}

/// The answer is lost but the record is stored; and the other way round. Either is unknown, and the tail tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_in_mid_append_is_unknown_and_resolved_by_the_tail() {
    let server = NatsServer::start().await;
    let direct = create(&server.url(), 1).await;
    let proxy = Proxy::to(server.port()).await;
    let nats = Nats::connect(&proxy.url(), "cut", Vec::new()).await.unwrap();
    let ledger = JetStreamLedger::open(&nats, &genesis().cell).await.unwrap();
    let mut tail = append(&ledger, "before").await.unwrap();

    let stored = note(tail, "stored, answer lost");
    proxy.lose_answers(true);
    let outcome = ledger
        .append(tail.sequence, stored.bytes.clone(), &Hints::default())
        .await;
    assert!(matches!(outcome, Err(AppendError::Unknown { .. })), "{outcome:?}");
    proxy.lose_answers(false);
    append_surely(&ledger, tail, &stored).await;
    assert_eq!(direct.tail().await.unwrap().anchor(), stored.anchor);
    tail = stored.anchor;

    let lost = note(tail, "never arrived");
    tokio::time::timeout(PATIENCE, async {
        while !nats.is_connected() {
            // tidy: waits for a connection that another process has to take
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    proxy.lose_requests(true);
    let outcome = ledger
        .append(tail.sequence, lost.bytes.clone(), &Hints::default())
        .await;
    assert!(
        matches!(
            outcome,
            Err(AppendError::Unknown { .. } | AppendError::Unavailable { .. })
        ),
        "{outcome:?}"
    );
    assert_eq!(direct.tail().await.unwrap().anchor(), tail);
    proxy.lose_requests(false);
    append_surely(&ledger, tail, &lost).await;
    assert_eq!(check(&direct).await.unwrap(), lost.anchor);
}

/// A consumer that is deleted, and one that is held: the follower makes another and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_or_stalled_consumer_is_made_again() {
    let server = NatsServer::start().await;
    let ledger = create(&server.url(), 1).await;
    let admin = admin(&server.url()).await;
    let mut follow = ledger.follow(1).await.unwrap();
    let far_away = async_nats::datetime::parse_rfc3339("2200-01-01T00:00:00Z").unwrap();
    let mut expected = 0;
    for trouble in ["none", "deleted", "stalled"] {
        use futures::TryStreamExt;
        let names: Vec<String> = admin.consumer_names().try_collect().await.unwrap();
        for name in names {
            match trouble {
                "deleted" => drop(admin.delete_consumer(&name).await.unwrap()),
                "stalled" => drop(admin.pause_consumer(&name, far_away).await.unwrap()),
                _ => {}
            }
        }
        append(&ledger, trouble).await.unwrap();
        expected += 1;
        let batch = tokio::time::timeout(PATIENCE, follow.next_batch(10))
            .await
            .expect("not made again")
            .unwrap();
        assert_eq!(
            batch.iter().map(|raw| raw.sequence).collect::<Vec<_>>(),
            [expected],
            "{trouble}"
        );
    }
}

/// Damage in a block the server has long closed: it starts as if nothing were wrong, and the walk names the record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_an_older_block_is_named() {
    let mut server = NatsServer::start().await;
    let ledger = create(&server.url(), 1).await;
    fill(&ledger, 20).await;
    let mut tail = append(&ledger, "the needle in the haystack").await.unwrap();
    // Blocks have 8 MiB.
    for _ in 0..50 {
        let sealed = record(tail, &[vec![9; 200_000]]);
        append_surely(&ledger, tail, &sealed).await;
        tail = sealed.anchor;
    }
    server.kill();
    damage_blocks(&server, b"the needle in the haystack");
    server.restart().await;
    let nats = Nats::connect(&server.url(), "after", Vec::new()).await.unwrap();
    let ledger = JetStreamLedger::open(&nats, &genesis().cell).await.unwrap();
    let error = check(&ledger).await.unwrap_err();
    assert_eq!(error.first_bad_sequence(), Some(21), "{error}");
    let mut follow = ledger.follow(1).await.unwrap();
    let error = loop {
        match tokio::time::timeout(PATIENCE, follow.next_batch(5)).await.unwrap() {
            Ok(batch) => assert!(batch.last().unwrap().sequence < 21),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ReadError::Corrupt { sequence: 21, .. }), "{error}");
}

/// A server that is only slow: nothing is lost, and nothing is written twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_server_costs_time_only() {
    let server = NatsServer::start().await;
    let ledger = create(&server.url(), 1).await;
    let tail = fill(&ledger, 5).await;
    let sealed = note(tail, "into the pause");
    server.pause();
    let outcome = ledger
        .append(tail.sequence, sealed.bytes.clone(), &Hints::default())
        .await;
    assert!(!matches!(outcome, Ok(())), "a stopped server cannot answer");
    server.resume();
    append_surely(&ledger, tail, &sealed).await;
    assert_eq!(check(&ledger).await.unwrap(), sealed.anchor);
}

#[tokio::test]
async fn settings_are_read_back_and_said_by_code() {
    let lazy = NatsServer::start_with(&NatsOptions {
        lazy_sync: true,
        ..NatsOptions::default()
    })
    .await;
    create(&lazy.url(), 1).await;
    let state = |description: &tidemill_bus::ledger::Description, code: &str| {
        description
            .findings
            .iter()
            .find(|finding| finding.code == code)
            .map(|finding| finding.state)
    };

    // Seen by a client alone, the sync setting is unknown; everything else is right.
    let blind = Nats::connect(&lazy.url(), "blind", Vec::new()).await.unwrap();
    let description = JetStreamLedger::open(&blind, &genesis().cell)
        .await
        .unwrap()
        .describe()
        .await;
    assert_eq!(
        state(&description, "nats_sync_always"),
        Some(FindingState::NotVerifiable)
    );
    assert_eq!(description.wrong().count(), 0, "{description:?}");
    for code in [
        "nats_version",
        "nats_stream",
        "nats_stream_config",
        "nats_max_bytes",
        "nats_replicas",
    ] {
        assert_eq!(state(&description, code), Some(FindingState::Verified), "{code}");
    }

    let seeing = Nats::connect(&lazy.url(), "seeing", vec![lazy.monitor_url()])
        .await
        .unwrap();
    let ledger = JetStreamLedger::open(&seeing, &genesis().cell).await.unwrap();
    let description = ledger.describe().await;
    assert_eq!(state(&description, "nats_sync_always"), Some(FindingState::Wrong));
    assert_eq!(description.wrong().count(), 1, "{description:?}");

    // A setting changed behind our back.
    let mut stream = admin(&lazy.url()).await;
    let config = stream.info().await.unwrap().config.clone();
    let discard = async_nats::jetstream::stream::DiscardPolicy::Old;
    let changed = async_nats::jetstream::stream::Config { discard, ..config };
    context(&lazy.url()).await.update_stream(changed).await.unwrap();
    let description = ledger.describe().await;
    assert_eq!(state(&description, "nats_stream_config"), Some(FindingState::Wrong));

    let strict = NatsServer::start().await;
    create(&strict.url(), 1).await;
    let seeing = Nats::connect(&strict.url(), "seeing", vec![strict.monitor_url()])
        .await
        .unwrap();
    let description = JetStreamLedger::open(&seeing, &genesis().cell)
        .await
        .unwrap()
        .describe()
        .await;
    assert_eq!(state(&description, "nats_sync_always"), Some(FindingState::Verified));
}

#[tokio::test]
async fn creating_twice_and_opening_nothing_are_errors() {
    let server = NatsServer::start().await;
    let nats = Nats::connect(&server.url(), "test", Vec::new()).await.unwrap();
    let missing = JetStreamLedger::open(&nats, &genesis().cell).await.err().unwrap();
    assert_eq!(missing.code(), "ledger_missing");
    create(&server.url(), 1).await;
    let limits = StreamLimits::default();
    let twice = JetStreamLedger::create(&nats, &genesis(), &limits).await.err().unwrap();
    assert_eq!(twice.code(), "ledger_exists");
}

/// A default that is larger than the server's disk must not keep a newcomer from starting; a choice is a choice.
#[tokio::test]
async fn the_default_size_limit_fits_the_server() {
    let server = NatsServer::start_with(&NatsOptions {
        max_file_store: Some(3 << 30),
        ..NatsOptions::default()
    })
    .await;
    let nats = Nats::connect(&server.url(), "test", Vec::new()).await.unwrap();
    let chosen = StreamLimits {
        max_bytes: Some(8 << 30),
        ..StreamLimits::default()
    };
    let refused = JetStreamLedger::create(&nats, &genesis(), &chosen).await.err().unwrap();
    assert_eq!(refused.code(), "ledger_unavailable");
    let ledger = JetStreamLedger::create(&nats, &genesis(), &StreamLimits::default())
        .await
        .unwrap();
    assert_eq!(ledger.tail().await.unwrap().capacity, Some(2 << 30));
    assert_eq!(ledger.describe().await.wrong().count(), 0);
}

/// A server of 2024, as far as a client can tell before it asks for anything.
#[tokio::test]
async fn an_old_server_is_refused_by_code() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (read, mut write) = stream.into_split();
        let info = format!(
            "INFO {{\"server_id\":\"OLD\",\"server_name\":\"old\",\"version\":\"2.10.22\",\"go\":\"go1.22\",\
             \"host\":\"127.0.0.1\",\"port\":{port},\"headers\":true,\"max_payload\":1048576,\"proto\":1,\"jetstream\":true}}\r\n"
        );
        write.write_all(info.as_bytes()).await.unwrap();
        let mut lines = BufReader::new(read).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if line.starts_with("PING") {
                write.write_all(b"PONG\r\n").await.unwrap();
            }
        }
    });
    let nats = Nats::connect(&format!("nats://127.0.0.1:{port}"), "test", Vec::new())
        .await
        .unwrap();
    let refused = JetStreamLedger::open(&nats, &genesis().cell).await.err().unwrap();
    assert_eq!(refused.code(), "nats_too_old");
    assert!(refused.to_string().contains("2.10.22"), "{refused}");
    server.abort();
}
