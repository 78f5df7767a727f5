//! Observations on JetStream; the other backends are tested beside their code.

use std::time::Duration;

use bytes::Bytes;
use tidemill_bus::jetstream::{Nats, StreamLimits};
use tidemill_bus::observations::{Block, JetStreamObservations, Observation, Observations};
use tidemill_tests::nats::NatsServer;

use crate::fixture::{context, genesis};
use crate::writer::PATIENCE;

fn block(number: i64, bytes: usize) -> Block {
    let payload = Bytes::from(vec![number.to_le_bytes()[0]; bytes]);
    let observation = Observation {
        kind: 1,
        source: format!("node-{number}"),
        received_at: number,
        payload,
    };
    Block {
        door: "door-a".to_owned(),
        observations: vec![observation],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_are_bounded_and_survive_a_restart_of_their_server() {
    let mut server = NatsServer::start().await;
    let nats = Nats::connect(&server.url(), "door", Vec::new()).await.unwrap();
    let limits = StreamLimits {
        max_bytes: Some(1 << 20),
        max_age: Some(Duration::from_secs(3600)),
        replicas: 1,
    };
    let store = JetStreamObservations::open(&nats, &genesis(), &limits).await.unwrap();
    // Opening again finds the same stream.
    let again = JetStreamObservations::open(&nats, &genesis(), &StreamLimits::default())
        .await
        .unwrap();
    let mut follow = again.follow(1).await.unwrap();

    for number in 1..=30 {
        assert_eq!(
            store.publish(&block(number, 100_000)).await.unwrap(),
            number.cast_unsigned()
        );
    }
    let bounds = store.bounds().await.unwrap();
    assert!(
        bounds.first > 1 && bounds.last == 30 && bounds.bytes <= 1 << 20,
        "{bounds:?}"
    );
    let read = store.read(1, 100, 300_000).await.unwrap();
    assert_eq!(read[0].sequence, bounds.first);
    assert_eq!(read[0].decode().unwrap(), block(bounds.first.cast_signed(), 100_000));
    assert!(store.read(31, 1, 1).await.unwrap().is_empty());
    let mut last = 0;
    while last < 30 {
        let batch = tokio::time::timeout(PATIENCE, follow.next_batch(4))
            .await
            .unwrap()
            .unwrap();
        assert!(batch[0].sequence > last && batch.len() <= 4);
        last = batch.last().unwrap().sequence;
    }

    let config = context(&server.url())
        .await
        .get_stream("OBSERVATIONS_main")
        .await
        .unwrap()
        .cached_info()
        .config
        .clone();
    assert!(
        format!("{config:?}").contains("Async"),
        "an unreplicated stream is written without waiting for the disk"
    );
    assert_eq!(config.compression, Some(async_nats::jetstream::stream::Compression::S2));

    server.restart().await;
    let after = tokio::time::timeout(PATIENCE, async {
        loop {
            match store.publish(&block(31, 10)).await {
                Ok(sequence) => return sequence,
                // tidy: waits for another process to serve
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    });
    let after = after.await.unwrap();
    loop {
        match tokio::time::timeout(PATIENCE, follow.next_batch(10)).await.unwrap() {
            Ok(batch) if batch.last().unwrap().sequence >= after => break,
            // Unsynced observations may be gone; the follower says so once and goes on.
            Ok(_) | Err(_) => {}
        }
    }
}
