//! A black hole: a network namespace whose answers can be made to vanish. Needs root and `ip`; without them the chaos
//! test goes on without it and says so.

use std::process::{Command, Stdio};

/// A namespace with one address, reachable from here until it is opened.
pub(super) struct Hole {
    name: String,
    pub(super) ip: String,
    /// Our end.
    here: String,
}

fn ip(words: &str) -> bool {
    let mut command = Command::new("ip");
    command
        .args(words.split_whitespace())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Hole {
    pub(super) fn dig() -> Option<Self> {
        let pid = std::process::id();
        // Of the range for documentation and examples within private nets, one pair a process.
        let net = format!("198.18.{}.{}", (pid >> 6) & 0xff, (pid & 0x3f) << 2);
        let (prefix, last) = net.rsplit_once('.')?;
        let last: u32 = last.parse().ok()?;
        let hole = Self {
            name: format!("tm-{pid}"),
            ip: format!("{prefix}.{}", last + 2),
            here: format!("{prefix}.{}", last + 1),
        };
        let Self { name, ip: there, here } = &hole;
        let dug = ip(&format!("netns add {name}"))
            && ip(&format!("link add {name}-a type veth peer name {name}-b netns {name}"))
            && ip(&format!("addr add {here}/30 dev {name}-a"))
            && ip(&format!("link set {name}-a up"))
            && ip(&format!("netns exec {name} ip addr add {there}/30 dev {name}-b"))
            && ip(&format!("netns exec {name} ip link set {name}-b up"));
        if !dug {
            println!("no network namespace to be had (not root?): hosts that vanish are left out");
        }
        dug.then_some(hole)
    }

    /// Words that run a program inside.
    pub(super) fn through(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.name].map(str::to_owned).to_vec()
    }

    /// From now on nothing comes back.
    pub(super) fn open(&self) {
        assert!(ip(&format!(
            "netns exec {} ip route add blackhole {}/32",
            self.name, self.here
        )));
    }

    /// Answers come again.
    pub(super) fn close(&self) {
        assert!(ip(&format!(
            "netns exec {} ip route del blackhole {}/32",
            self.name, self.here
        )));
    }
}

impl Drop for Hole {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.name));
        ip(&format!("link del {}-a", self.name));
    }
}
