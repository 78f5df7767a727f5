//! Processes as `/proc` shows them: start times, descendants, and what carries an instance's mark.
//!
//! Descendants are walked through `/proc/PID/task/*/children`, which costs what the tree costs; only kernels built
//! without it make us read every process of the machine.

use std::{collections::HashSet, fs, path::Path};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::wire::Identity;

/// The identity of a living process.
pub(crate) fn identity(pid: i32) -> Option<Identity> {
    let start = stat_fields(pid)?.get(19)?.parse().ok()?;
    Some(Identity { pid, start })
}

/// Fields 3 and up of `/proc/PID/stat`. The name before them may hold blanks and parentheses.
fn stat_fields(pid: i32) -> Option<Vec<String>> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_ascii_whitespace().map(str::to_owned).collect())
}

/// All living descendants of `root`, itself not included.
pub(crate) fn descendants(root: i32) -> Vec<i32> {
    if !Path::new(&format!("/proc/{root}/task/{root}/children")).exists() {
        return descendants_by_scan(root);
    }
    let mut found = Vec::new();
    let mut seen = HashSet::from([root]);
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        for child in children(pid) {
            if seen.insert(child) {
                found.push(child);
                next.push(child);
            }
        }
    }
    found
}

fn children(pid: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|list| {
            list.split_ascii_whitespace()
                .filter_map(|child| child.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

fn descendants_by_scan(root: i32) -> Vec<i32> {
    let parents: Vec<(i32, i32)> = all_pids()
        .filter_map(|pid| Some((pid, stat_fields(pid)?.get(1)?.parse().ok()?)))
        .collect();
    let mut family = HashSet::from([root]);
    let mut found = Vec::new();
    loop {
        let before = found.len();
        for (pid, parent) in &parents {
            if family.contains(parent) && family.insert(*pid) {
                found.push(*pid);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

fn all_pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Kills every descendant of `root`; returns how many there were. They are stopped first: a process that forks faster
/// than it is killed would otherwise win.
pub(crate) fn kill_descendants(root: i32) -> usize {
    let mut stopped = HashSet::new();
    // Each pass can only find children born before their parent stopped; 64 generations in one sweep are not real.
    for _ in 0..64 {
        let found = descendants(root);
        let before = stopped.len();
        for pid in found {
            if stopped.insert(pid) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGSTOP);
            }
        }
        if stopped.len() == before {
            break;
        }
    }
    for pid in &stopped {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    stopped.len()
}

/// Living processes started for `instance`, found by the environment they inherited. Only for an instance whose shim
/// was killed: its processes then have no common parent any more.
pub(crate) fn marked(instance: &str) -> Vec<i32> {
    let mark = format!("TIDEMILL_INSTANCE={instance}");
    all_pids()
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes()))
        })
        .collect()
}

/// Kills what is left of `instance` without its shim and waits until it is gone. `Err` = how many did not go.
pub(crate) fn kill_marked(instance: &str) -> Result<usize, usize> {
    let mut killed = HashSet::new();
    // Processes in an uninterruptible wait take a while; 10 s is longer than any driver reset seen to succeed.
    for _ in 0..200 {
        let found = marked(instance);
        if found.is_empty() {
            return Ok(killed.len());
        }
        for pid in &found {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        killed.extend(found);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Err(marked(instance).len())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn identity_tells_processes_apart() {
        let own = std::process::id().cast_signed();
        assert_eq!(identity(own), identity(own));
        assert!(identity(own).unwrap().start > 0);
        assert_eq!(identity(i32::MAX), None);
    }

    #[test]
    fn both_walks_find_a_grandchild() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & echo ready; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let root = child.id().cast_signed();
        let walked = descendants(root);
        assert_eq!(walked.len(), 1);
        assert_eq!(walked, descendants_by_scan(root));
        assert_eq!(kill_descendants(root), 1);
        child.wait().unwrap();
    }
}
