//! The persisted form is frozen: `migrations/kinds.lock` holds, for each event kind and version ever written and for
//! the commit around them, the hash of its shape and the bytes of a sample; `tests/golden/` holds a whole ledger.
//!
//! A failure here means that ledgers written by a release could not be read. The right mend is nearly always a new
//! version beside the old one. After *adding* a kind, run `UPDATE_KINDS=1 cargo test -p tidemill-tests --test golden`;
//! that appends and never changes a line.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use postcard_schema::Schema;
use postcard_schema::schema::NamedType;
use tidemill_domain::commit::{COMMIT_FORMAT, Commit, CommitHeader, from_hex, to_hex};
use tidemill_domain::events::{DecodeError, EARLIER, Event, KINDS};
use tidemill_domain::state::seal::Sealer;
use tidemill_domain::state::{STATE_VERSION, State};
use tidemill_tests::samples::{earlier, header, samples};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn shape(schema: &'static NamedType) -> String {
    to_hex(&blake3::hash(format!("{schema:?}").as_bytes()).as_bytes()[..16])
}

/// Name, shape hash and golden bytes by (kind, version); the commit's own stands under kind 0.
type Lock = BTreeMap<(u16, u16), (String, String, String)>;

fn present() -> Lock {
    let mut lock = Lock::new();
    let commit = Commit {
        header: header(),
        events: vec![samples()[0].clone()],
    };
    let commit_shape = shape(<CommitHeader as Schema>::SCHEMA);
    lock.insert(
        (0, u16::from(COMMIT_FORMAT)),
        ("Commit".into(), commit_shape, to_hex(&commit.encode())),
    );
    for (info, sample) in KINDS.iter().zip(samples()) {
        assert_eq!(
            (info.kind, info.version),
            sample.kind(),
            "samples stand in the order of the table"
        );
        let golden = to_hex(&sample.encode_body(Vec::new()));
        let entry = (info.name.to_owned(), shape(info.schema), golden);
        assert!(
            lock.insert((info.kind, info.version), entry).is_none(),
            "{} has a number twice",
            info.name
        );
    }
    assert_eq!(KINDS.len(), samples().len(), "every kind has a sample");
    for (info, sample) in EARLIER.iter().zip(earlier()) {
        let entry = (info.name.to_owned(), shape(info.schema), to_hex(&sample.bytes));
        assert!(
            lock.insert((info.kind, info.version), entry).is_none(),
            "{} has a number twice",
            info.name
        );
    }
    assert_eq!(EARLIER.len(), earlier().len(), "every earlier version has a sample");
    lock
}

fn stored() -> Lock {
    let text = std::fs::read_to_string(root().join("migrations/kinds.lock")).unwrap_or_default();
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [kind, version, name, shape, golden] = fields[..] else {
                panic!("a line has five fields: {line}")
            };
            let key = (kind.parse().unwrap(), version.parse().unwrap());
            (key, (name.to_owned(), shape.to_owned(), golden.to_owned()))
        })
        .collect()
}

#[test]
fn every_kind_is_frozen() {
    let present = present();
    let stored = stored();
    let mut added = String::new();
    for ((kind, version), now) in &present {
        match stored.get(&(*kind, *version)) {
            Some(then) => assert_eq!(
                now, then,
                "kind {kind} version {version} changed: write a new version instead"
            ),
            None => writeln!(added, "{kind} {version} {} {} {}", now.0, now.1, now.2).unwrap(),
        }
    }
    for (key, (name, ..)) in &stored {
        assert!(
            present.contains_key(key),
            "{name} is gone: ledgers hold it, so readers keep it for ever"
        );
    }
    if std::env::var_os("UPDATE_KINDS").is_some() {
        let path = root().join("migrations/kinds.lock");
        let head = "# kind version name shape-hash golden-bytes; frozen, see tests/tests/golden.rs\n".to_owned();
        let text = std::fs::read_to_string(&path).unwrap_or(head) + &added;
        std::fs::write(path, text).unwrap();
    } else {
        assert!(
            added.is_empty(),
            "new kinds are to be frozen (see the top of this file):\n{added}"
        );
    }
}

#[test]
fn golden_bytes_decode_to_their_samples() {
    let samples: BTreeMap<_, _> = samples().into_iter().map(|s| (s.kind(), s)).collect();
    for ((kind, version), (name, _, golden)) in stored() {
        let mut bytes = vec![0; golden.len() / 2];
        from_hex(&golden, &mut bytes).unwrap();
        if kind == 0 {
            assert_eq!(Commit::decode(&bytes).unwrap().header, header());
            continue;
        }
        let decoded = Event::decode(kind, version, &bytes).unwrap();
        match samples.get(&(kind, version)) {
            Some(sample) => assert_eq!(decoded, *sample, "{name}"),
            None => {
                let sample = earlier().into_iter().find(|sample| sample.bytes == bytes);
                assert_eq!(decoded, sample.unwrap().becomes, "{name} {version}");
            }
        }
        for end in 0..bytes.len() {
            assert!(
                Event::decode(kind, version, &bytes[..end]).is_err(),
                "{name} cut to {end} bytes is an error"
            );
        }
    }
}

#[test]
fn an_unknown_kind_stops_a_reader_and_says_what_to_do() {
    let error = Event::decode(9999, 1, &[]).unwrap_err();
    assert_eq!(error, DecodeError::UnknownKind { kind: 9999, version: 1 });
    assert!(error.to_string().contains("upgrade"));
    let error = Event::decode(1, 2, &[]).unwrap_err();
    assert_eq!(error, DecodeError::UnknownKind { kind: 1, version: 2 });
    let mut commit = Commit {
        header: header(),
        events: vec![samples()[0].clone()],
    }
    .encode();
    commit[0] = COMMIT_FORMAT + 1;
    assert!(
        Commit::decode(&commit)
            .unwrap_err()
            .to_string()
            .contains("newer release")
    );
}

#[test]
fn damaged_commits_are_errors_and_never_panics() {
    let bytes = Commit {
        header: header(),
        events: samples(),
    }
    .encode();
    for end in 0..bytes.len() {
        assert!(Commit::decode(&bytes[..end]).is_err());
    }
    for at in 0..bytes.len() {
        for flip in [1, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let _ = Commit::decode(&damaged);
        }
    }
}

/// What 400 random commands left on the ledger, one file a version of the state, as builds of that version wrote them: the seal, then each commit
/// in hex, a line. All of them fold; today's also to its seal and, written again, to the same bytes.
#[test]
fn golden_ledgers_fold() {
    let path_of = |version: u32| root().join(format!("tests/golden/state-{version}.hex"));
    if std::env::var_os("UPDATE_KINDS").is_some() && !path_of(STATE_VERSION).exists() {
        std::fs::write(path_of(STATE_VERSION), golden_ledger()).unwrap();
    }
    for version in 1..=STATE_VERSION {
        let today = version == STATE_VERSION;
        let text = std::fs::read_to_string(path_of(version)).unwrap();
        let mut lines = text.lines();
        let seal = lines.next().unwrap();
        let mut state = State::default();
        let mut sequence = 0;
        for line in lines {
            let mut bytes = vec![0; line.len() / 2];
            from_hex(line, &mut bytes).unwrap();
            let commit = Commit::decode(&bytes).unwrap();
            assert!(
                !today || commit.encode() == bytes,
                "what is decoded encodes to the same bytes"
            );
            sequence += 1;
            state.apply_record(sequence, [&commit], &mut Vec::new()).unwrap();
        }
        assert!(sequence > 50);
        let sealed = to_hex(&Sealer::of(&state).seal(&state));
        assert!(
            !today || sealed == seal,
            "a change of the state's shape raises STATE_VERSION"
        );
    }
}

fn golden_ledger() -> String {
    let mut cell = tidemill_tests::random::run(
        &(0..400u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 8) as u64)
            .collect::<Vec<_>>(),
    );
    let mut text = to_hex(&cell.seal());
    for commit in &cell.commits {
        text.push('\n');
        text.push_str(&to_hex(&commit.encode()));
    }
    text
}
