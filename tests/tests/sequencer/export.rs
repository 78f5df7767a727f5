//! Verification and exports: what is said once can be checked for ever, and a tenant's file holds nobody else's secrets.

use std::path::Path;

use tidemill_bus::audit::verify;
use tidemill_bus::digest::{Anchor, Digest};
use tidemill_bus::export::{Export, ExportError, ExportRequest, export, verify_file};
use tidemill_bus::ledger::{Ledger, RawRecord};
use tidemill_bus::memory::MemoryLedger;
use tidemill_domain::command::Command;
use tidemill_domain::unit::Name;
use tidemill_tests::make;

use crate::support::{Seat, ask, genesis, id, numbered, read_all};

const SECRET: &str = "hunter2-of-the-other-tenant";
const OWN: &str = "a value of our own";

/// A ledger of three epochs with services of two tenants, each with an environment.
async fn two_tenants() -> MemoryLedger {
    let ledger = MemoryLedger::create(genesis());
    let mut n = 1000;
    for epoch in 0..3 {
        let seat = Seat::leading(&ledger).await;
        for (tenant, value) in [("acme", OWN), ("rival", SECRET)] {
            let mut spec = make::spec(2, 4);
            spec.run.env.insert("KEY".into(), format!("{value} {epoch}"));
            let Command::ApplyServices { mut services } = make::apply(&format!("s{epoch}"), spec) else {
                unreachable!()
            };
            services[0].tenant = make::name(tenant);
            n += 1;
            seat.submit(ask(id(n), Command::ApplyServices { services }))
                .await
                .unwrap();
            seat.submit(numbered(n + 10_000)).await.unwrap();
        }
        let node = make::join(&format!("n{epoch}"), 2);
        seat.submit(ask(id(n + 500), Command::JoinNode(node))).await.unwrap();
        seat.end().await;
    }
    ledger
}

async fn written(ledger: &MemoryLedger, dir: &Path, from: u64, to: u64, tenant: Option<&str>) -> std::path::PathBuf {
    let path = dir.join(format!("{from}-{to}-{}.export", tenant.unwrap_or("all")));
    let request = ExportRequest {
        from,
        to,
        tenant: tenant.map(make::name),
    };
    let report = export(ledger, None, &request, &path, |_, _| {}).await.unwrap();
    assert!(report.first <= from);
    path
}

fn holds(path: &Path, text: &str) -> bool {
    let bytes = std::fs::read(path).unwrap();
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test]
async fn a_sound_ledger_verifies_and_an_anchor_printed_once_holds() {
    let ledger = two_tenants().await;
    let (fold, commits) = read_all(&ledger).await;
    let report = verify(&ledger, None, |_, _| {}).await.unwrap();
    assert!(report.ok, "{report:?}");
    assert_eq!((report.records, report.head), (fold.head().sequence, fold.head()));
    assert_eq!(
        report.events,
        commits
            .iter()
            .map(|(_, commit)| commit.events.len() as u64)
            .sum::<u64>()
    );
    assert_eq!((report.seals_checked, report.seals_not_checkable), (3, 0));
    assert!(verify(&ledger, Some(fold.head()), |_, _| {}).await.unwrap().ok);

    let other = Anchor {
        hash: Digest::of(b"another history"),
        ..fold.head()
    };
    let report = verify(&ledger, Some(other), |_, _| {}).await.unwrap();
    assert_eq!((report.ok, report.first_bad_seq), (false, Some(other.sequence)));
    let later = Anchor {
        sequence: fold.head().sequence + 1,
        ..other
    };
    let report = verify(&ledger, Some(later), |_, _| {}).await.unwrap();
    assert_eq!(
        (report.first_bad_seq, report.code.as_deref()),
        (Some(later.sequence), Some("ledger_shorter"))
    );
}

#[tokio::test]
async fn verification_names_the_first_bad_record() {
    let whole = two_tenants().await.records();
    for bad in [1, 7, whole.len() as u64] {
        let ledger = MemoryLedger::with_records(genesis(), whole.clone());
        let mut bytes = whole[bad as usize - 1].to_vec();
        let middle = bytes.len() * 2 / 3;
        bytes[middle] ^= 0x10;
        ledger.overwrite(bad, bytes.into());
        let report = verify(&ledger, None, |_, _| {}).await.unwrap();
        assert_eq!((report.ok, report.first_bad_seq), (false, Some(bad)), "{report:?}");
        assert_eq!(report.records, bad - 1);
        assert!(report.reason.is_some());
    }
}

#[tokio::test]
async fn a_slice_opens_at_a_seal_verifies_elsewhere_and_folds_to_the_same_state() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = two_tenants().await;
    let (fold, _) = read_all(&ledger).await;
    let last = fold.head().sequence;
    for from in 1..=last {
        let path = written(&ledger, dir.path(), from, u64::MAX, None).await;
        let report = verify_file(&path, Some(fold.head()), |_, _| {}).await.unwrap().unwrap();
        assert!(report.ok && report.head == fold.head(), "from {from}: {report:?}");
        assert!(
            report.seals_checked > 0 && report.seals_not_checkable == 0,
            "{report:?}"
        );
        let slice = Export::open(&path).unwrap().expect("an export");
        let mut again = slice.fold().unwrap().expect("all of it is there");
        while again.head().sequence < last {
            for RawRecord { sequence, body } in slice
                .ledger()
                .read(again.head().sequence + 1, 100, 1 << 20)
                .await
                .unwrap()
            {
                again.record(&RawRecord { sequence, body }, &mut vec![]).unwrap();
            }
        }
        assert_eq!(again.state().to_snapshot(), fold.state().to_snapshot());
    }
    let middle = written(&ledger, dir.path(), 3, 5, None).await;
    assert_eq!(Export::open(&middle).unwrap().unwrap().meta().to, 5);
    let request = ExportRequest {
        from: 3,
        to: 5,
        tenant: None,
    };
    let again = export(&ledger, None, &request, &middle, |_, _| {}).await.unwrap_err();
    assert!(matches!(again, ExportError::Exists { .. }), "{again}");
    let request = ExportRequest {
        from: last + 1,
        to: last + 9,
        tenant: None,
    };
    let beyond = export(&ledger, None, &request, &dir.path().join("x"), |_, _| {})
        .await
        .unwrap_err();
    assert_eq!(beyond.code(), "export_range");
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count() as u64,
        last + 1,
        "nothing half-written stays"
    );
}

#[tokio::test]
async fn a_tenants_export_verifies_without_the_contents_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = two_tenants().await;
    let (fold, _) = read_all(&ledger).await;
    let last = fold.head().sequence;
    for from in [1, last / 2, last - 1] {
        let path = written(&ledger, dir.path(), from, last, Some("acme")).await;
        let report = verify_file(&path, Some(fold.head()), |_, _| {}).await.unwrap().unwrap();
        assert!(report.ok && report.head == fold.head(), "{report:?}");
        assert!(from > last / 2 || report.left_out > 0);
        assert!(
            from == 1 || report.seals_checked == 1,
            "the opening is bound to the chain: {report:?}"
        );
        assert!(holds(&path, OWN), "what is theirs is there");
        assert!(!holds(&path, SECRET), "what is another's is not");
        assert_eq!(
            Export::open(&path).unwrap().unwrap().meta().tenant.as_deref(),
            Some("acme")
        );
        assert!(Export::open(&path).unwrap().unwrap().fold().unwrap().is_none());
    }
    assert!(
        holds(&written(&ledger, dir.path(), 1, last, None).await, SECRET),
        "the whole ledger has both"
    );
    let _: Name = make::name("acme");
}

#[tokio::test]
async fn a_changed_export_does_not_verify() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = two_tenants().await;
    let last = ledger.records().len() as u64;
    let path = written(&ledger, dir.path(), last - 1, last, None).await;
    // Not through SQLite, which would say the file is sound: the byte lies within a stored body.
    let mut bytes = std::fs::read(&path).unwrap();
    let places: Vec<_> = (0..bytes.len() - OWN.len())
        .filter(|at| bytes[*at..].starts_with(OWN.as_bytes()))
        .collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| bytes[*at] ^= 1);
    std::fs::write(&path, bytes).unwrap();
    let report = verify_file(&path, None, |_, _| {}).await.unwrap().unwrap();
    assert!(!report.ok && report.first_bad_seq.is_some(), "{report:?}");
}
