//! Tests of blocks and their stores.
#![allow(clippy::unwrap_used)]

use super::*;

fn block(number: i64) -> Block {
    let observation = |source: &str, received_at| Observation {
        kind: 1,
        source: source.to_owned(),
        received_at,
        payload: Bytes::from(vec![7; 40]),
    };
    Block {
        door: "door-a".to_owned(),
        observations: vec![
            observation("node-1", number * 1_000_000),
            observation("node-2", number * 1_000_000 + 5),
        ],
    }
}

#[test]
fn blocks_survive_encoding_and_damage_is_an_error() {
    let bytes = block(3).encode();
    assert_eq!(Block::decode(&bytes).unwrap(), block(3));
    assert_eq!(
        Digest::of(&bytes).to_string(),
        include_str!("golden-v1.hash").trim(),
        "format 1 is frozen"
    );
    assert!(Block::decode(&bytes.slice(..bytes.len() - 1)).is_err());
    assert_eq!(
        Block::decode(&Bytes::from_static(b"\x07")),
        Err(BlockError::UnknownFormat { found: Some(7) })
    );
}

/// Ten blocks a second apart, of which limits keep the last few.
async fn bounded(store: &dyn Observations, expect_first: u64) {
    let mut follow = store.follow(1).await.unwrap();
    for number in 1..=10 {
        assert_eq!(store.publish(&block(number)).await.unwrap(), number.cast_unsigned());
    }
    let bounds = store.bounds().await.unwrap();
    assert_eq!((bounds.first, bounds.last), (expect_first, 10));
    let read = store.read(0, 100, usize::MAX).await.unwrap();
    assert_eq!(
        read.iter().map(|b| b.sequence).collect::<Vec<_>>(),
        (expect_first..=10).collect::<Vec<_>>()
    );
    assert_eq!(read[0].decode().unwrap(), block(expect_first.cast_signed()));
    assert_eq!(store.read(9, 1, usize::MAX).await.unwrap()[0].sequence, 9);
    assert!(store.read(11, 1, usize::MAX).await.unwrap().is_empty());
    // The follower was too slow for the first ones: it goes on with what is kept.
    let batch = follow.next_batch(100).await.unwrap();
    assert_eq!((batch[0].sequence, follow.next_sequence()), (expect_first, 11));
    let mut at_end = store.follow(99).await.unwrap();
    store.publish(&block(11)).await.unwrap();
    assert_eq!(at_end.next_batch(1).await.unwrap()[0].sequence, 11);
}

#[tokio::test]
async fn age_and_size_bound_what_is_kept() {
    let by_age = ObservationLimits {
        max_age: Duration::from_secs(3),
        ..ObservationLimits::default()
    };
    let size = block(10).encode().len() as u64;
    let by_size = ObservationLimits {
        max_bytes: 2 * size,
        ..ObservationLimits::default()
    };
    let dir = tempfile::tempdir().unwrap();
    for (name, limits, first) in [("age", by_age, 7), ("size", by_size, 9)] {
        bounded(&MemoryObservations::new(limits), first).await;
        bounded(
            &EmbeddedObservations::open(&dir.path().join(name), limits).unwrap(),
            first,
        )
        .await;
    }
}

#[tokio::test]
async fn sequences_go_on_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("observations.sqlite");
    let store = EmbeddedObservations::open(&path, ObservationLimits::default()).unwrap();
    store.publish(&block(1)).await.unwrap();
    let before = store.bounds().await.unwrap();
    drop(store);
    let store = EmbeddedObservations::open(&path, ObservationLimits::default()).unwrap();
    assert_eq!(store.bounds().await.unwrap(), before);
    assert_eq!(store.publish(&block(2)).await.unwrap(), 2);
}

#[tokio::test]
async fn an_oversized_block_is_refused() {
    let mut large = block(1);
    large.observations[0].payload = Bytes::from(vec![0; MAX_BLOCK_BYTES]);
    let store = MemoryObservations::new(ObservationLimits::default());
    assert_eq!(
        store.publish(&large).await.unwrap_err().code(),
        "observations_block_too_large"
    );
}
