//! Stand-ins for vendors' drivers: a management library built from C, a kernel's folder, a command-line tool.
//!
//! The library reads what it says from a file beside it, so each test has a copy of its own and may change the machine
//! while it is watched.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

/// The stand-in for NVIDIA's library, built once a test program.
fn library() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("devices/fake_nvml.c");
        let path = dir.path().join("libfake.so");
        let compiler = ["cc", "gcc", "clang"].into_iter().find(|compiler| {
            let built = Command::new(compiler)
                .args(["-shared", "-fPIC", "-O1", "-o"])
                .args([&path, &source])
                .status();
            built.is_ok_and(|status| status.success())
        });
        assert!(compiler.is_some(), "no C compiler builds {}", source.display());
        (dir, path)
    });
    path
}

/// Drivers of one imagined machine, in a directory of its own.
#[derive(Debug)]
pub struct FakeDrivers {
    dir: TempDir,
}

impl Default for FakeDrivers {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeDrivers {
    /// A machine without any accelerator: no tool, an empty kernel folder, an empty kernel log, a library that finds none.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir(dir.path().join("sys")).expect("it is empty");
        fs::write(dir.path().join("kernel.log"), "").expect("it can be written");
        fs::copy(library(), dir.path().join("libnvidia-ml.so")).expect("the library was built");
        let drivers = Self { dir };
        drivers.nvml("");
        drivers
    }

    /// What NVIDIA's library says from now on.
    pub fn nvml(&self, conf: &str) {
        self.replace(&self.dir.path().join("libnvidia-ml.so.conf"), conf, 0o644);
    }

    /// A file of the kernel, below `/sys`.
    pub fn sysfs_file(&self, path: &str, text: &str) {
        let path = self.sysfs().join(path);
        fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("it can be made");
        fs::write(path, text).expect("it can be written");
    }

    /// What Huawei's tool answers, by its arguments; anything else fails.
    pub fn npu_smi_says(&self, answers: &BTreeMap<String, Vec<String>>) {
        let mut script = String::from("#!/bin/sh\ncase \"$*\" in\n");
        for (number, (arguments, lines)) in answers.iter().enumerate() {
            let answer = self.dir.path().join(format!("answer-{number}"));
            self.replace(&answer, &(lines.join("\n") + "\n"), 0o644);
            script.push_str(&format!("'{arguments}') exec cat '{}' ;;\n", answer.display()));
        }
        script.push_str("*) echo 'This device does not support querying' ; exit 1 ;;\nesac\n");
        self.npu_smi_script(&script);
    }

    /// Huawei's tool as a script.
    pub fn npu_smi_script(&self, script: &str) {
        self.replace(&self.npu_smi(), script, 0o755);
    }

    /// Renamed into place: who reads it must not see half of it.
    fn replace(&self, path: &Path, text: &str, mode: u32) {
        let new = self.dir.path().join("new");
        fs::write(&new, text).expect("it can be written");
        fs::set_permissions(&new, fs::Permissions::from_mode(mode)).expect("it is ours");
        fs::rename(&new, path).expect("it can be renamed");
    }

    /// Appends a line to the kernel's log.
    pub fn log_line(&self, line: &str) {
        use std::io::Write;
        let mut log = fs::OpenOptions::new()
            .append(true)
            .open(self.kernel_log())
            .expect("it is there");
        writeln!(log, "{line}").expect("it can be written");
    }

    /// The library's path.
    pub fn library(&self) -> PathBuf {
        self.dir.path().join("libnvidia-ml.so")
    }

    /// The kernel's folder.
    pub fn sysfs(&self) -> PathBuf {
        self.dir.path().join("sys")
    }

    /// The tool's path; nothing is there until it was told what to say.
    pub fn npu_smi(&self) -> PathBuf {
        self.dir.path().join("npu-smi")
    }

    /// The kernel's log.
    pub fn kernel_log(&self) -> PathBuf {
        self.dir.path().join("kernel.log")
    }

    /// As flags of `up` and `agent`.
    pub fn flags(&self) -> Vec<String> {
        let path = |path: PathBuf| path.to_str().expect("temporary paths are UTF-8").to_owned();
        vec![
            "--nvml-library".to_owned(),
            path(self.library()),
            "--sysfs".to_owned(),
            path(self.sysfs()),
            "--npu-smi".to_owned(),
            path(self.npu_smi()),
            "--kernel-log".to_owned(),
            path(self.kernel_log()),
        ]
    }
}
