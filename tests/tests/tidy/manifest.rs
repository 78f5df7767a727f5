//! Rules about crates: who may depend on whom, on what, and in which versions.
//!
//! Manifests and the lock file are read line by line; this workspace writes one dependency a line, and a rule here fails
//! loudly when a manifest has none at all.

use std::collections::{BTreeMap, BTreeSet};

use crate::{files, none, root};

/// A crate of the workspace.
struct Manifest {
    /// Folder relative to the checkout.
    folder: String,
    /// Package name.
    name: String,
    /// Names under `[dependencies]` and `[build-dependencies]`.
    dependencies: BTreeSet<String>,
    /// Names under `[dev-dependencies]`.
    dev: BTreeSet<String>,
}

fn manifests() -> Vec<Manifest> {
    files("")
        .into_iter()
        .filter(|path| path.file_name().is_some_and(|name| name == "Cargo.toml") && path.components().count() > 1)
        .map(|path| {
            let text = std::fs::read_to_string(root().join(&path)).unwrap();
            let folder = path.parent().unwrap().to_string_lossy().replace('\\', "/");
            read(folder, &text)
        })
        .collect()
}

fn read(folder: String, text: &str) -> Manifest {
    let mut manifest = Manifest {
        folder,
        name: String::new(),
        dependencies: BTreeSet::new(),
        dev: BTreeSet::new(),
    };
    let mut section = String::new();
    for line in text.lines() {
        let line = line.trim();
        if let Some(head) = line.strip_prefix('[') {
            section = head.trim_matches(|c| c == '[' || c == ']').to_owned();
            // `[dependencies.name]`
            for (kind, set) in [("dependencies.", false), ("dev-dependencies.", true)] {
                if let Some(name) = section.strip_prefix(kind) {
                    let names = if set {
                        &mut manifest.dev
                    } else {
                        &mut manifest.dependencies
                    };
                    names.insert(name.to_owned());
                }
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        let key = key.trim().split('.').next().unwrap_or_default().to_owned();
        match section.as_str() {
            "package" if key == "name" => {
                manifest.name = value.trim().trim_matches('"').to_owned();
            }
            "dependencies" | "build-dependencies" => {
                manifest.dependencies.insert(key);
            }
            "dev-dependencies" => {
                manifest.dev.insert(key);
            }
            _ => {}
        }
    }
    manifest
}

/// Height of a crate in the ring; a crate may depend on lower ones, workers on each other too.
fn height(folder: &str) -> Option<u8> {
    match folder {
        "domain" => Some(0),
        "bus" => Some(1),
        "projections" => Some(2),
        _ if folder.starts_with("workers/") => Some(3),
        "tests" => Some(4),
        _ => None,
    }
}

#[test]
fn dependencies_point_down_the_ring() {
    let manifests = manifests();
    assert!(manifests.len() > 5, "the manifests were not found");
    let heights: BTreeMap<&str, u8> = manifests
        .iter()
        .filter_map(|manifest| Some((manifest.name.as_str(), height(&manifest.folder)?)))
        .collect();
    let mut offenders = Vec::new();
    for manifest in &manifests {
        let Some(own) = height(&manifest.folder) else {
            offenders.push(format!("{}: a crate outside the ring", manifest.folder));
            continue;
        };
        for dependency in &manifest.dependencies {
            let Some(other) = heights.get(dependency.as_str()) else {
                continue;
            };
            let worker = own == 3 && *other == 3;
            if *other >= own && !worker {
                offenders.push(format!("{} depends on {dependency}", manifest.folder));
            }
        }
    }
    none(
        "a dependency points up the ring",
        "domain ← bus ← projections ← workers ← tests: move what is shared down",
        offenders,
    );
}

#[test]
fn workers_depend_on_each_other_without_circles() {
    let manifests = manifests();
    let edges: BTreeMap<&str, &BTreeSet<String>> = manifests
        .iter()
        .map(|manifest| (manifest.name.as_str(), &manifest.dependencies))
        .collect();
    let mut offenders = Vec::new();
    for start in edges.keys() {
        let mut seen = BTreeSet::new();
        let mut open: Vec<&str> = vec![start];
        while let Some(name) = open.pop() {
            for next in edges.get(name).into_iter().flat_map(|names| names.iter()) {
                if next == start {
                    offenders.push(format!("{start} depends on itself through {name}"));
                } else if edges.contains_key(next.as_str()) && seen.insert(next.as_str()) {
                    open.push(next);
                }
            }
        }
    }
    none(
        "crates depend on each other in a circle",
        "move what is shared into a crate below both",
        offenders,
    );
}

/// A dependency and the folders that may have it.
type Allowed = (&'static str, &'static [&'static str]);

/// Where a dependency with a meaning of its own may be used.
const CONFINED: &[Allowed] = &[
    ("async-nats", &["bus", "tests"]),
    ("rusqlite", &["bus", "projections", "workers/agent", "tests"]),
    ("nix", &["bus", "workers/agent", "workers/tidemill", "tests"]),
    ("clap", &["workers/tidemill"]),
    ("axum", &["workers/door"]),
    ("postcard", &["domain", "bus", "projections", "tests"]),
];

#[test]
fn storage_and_transport_stay_where_they_belong() {
    let mut offenders = Vec::new();
    for manifest in manifests() {
        for (dependency, folders) in CONFINED {
            if manifest.dependencies.contains(*dependency) && !folders.contains(&manifest.folder.as_str()) {
                offenders.push(format!(
                    "{} depends on {dependency} (allowed: {})",
                    manifest.folder,
                    folders.join(", ")
                ));
            }
        }
    }
    none(
        "a crate reaches around the layer that owns a dependency",
        "go through the bus for the log, through projections for rows, through the kit for anything else",
        offenders,
    );
}

#[test]
fn the_domain_depends_on_nothing_that_waits() {
    let banned = [
        "tokio",
        "futures",
        "async-trait",
        "hyper",
        "fastrand",
        "rand",
        "tracing",
    ];
    let offenders = manifests()
        .iter()
        .filter(|manifest| manifest.folder == "domain")
        .flat_map(|manifest| manifest.dependencies.iter().cloned())
        .filter(|name| banned.contains(&name.as_str()) || name.starts_with("tidemill-"))
        .collect();
    none(
        "the domain depends on something that waits or rolls dice",
        "keep `decide` and `apply` pure; what waits is a worker",
        offenders,
    );
}

/// Crates of which two versions would mean two runtimes, two TLS stacks or two SQLites in one binary.
const ONE_VERSION: [&str; 9] = [
    "async-nats",
    "axum",
    "hyper",
    "libsqlite3-sys",
    "rusqlite",
    "rustls",
    "tokio",
    "tokio-tungstenite",
    "tungstenite",
];

#[test]
fn big_dependencies_exist_once() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut name = "";
    for line in lock.lines() {
        if let Some(value) = line.strip_prefix("name = ") {
            name = value.trim_matches('"');
        } else if let Some(value) = line.strip_prefix("version = ")
            && ONE_VERSION.contains(&name)
        {
            versions.entry(name).or_default().push(value.trim_matches('"'));
        }
    }
    let offenders = versions
        .into_iter()
        .filter(|(_, versions)| versions.len() > 1)
        .map(|(name, versions)| format!("{name}: {}", versions.join(", ")))
        .collect();
    none(
        "Cargo.lock holds two versions of a big dependency",
        "ask for the version its users already have; `cargo tree -d` shows who wants which",
        offenders,
    );
}

#[test]
fn manifests_are_read() {
    let manifest = read(
        "workers/x".to_owned(),
        "[package]\nname = \"x\"\n[dependencies]\na.workspace = true\nb = { path = \"b\" }\n[dependencies.c]\nversion = \"1\"\n[dev-dependencies]\nd = \"1\"\n",
    );
    assert_eq!(manifest.name, "x");
    assert_eq!(manifest.dependencies.into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(manifest.dev.into_iter().collect::<Vec<_>>(), ["d"]);
}
