//! A vendor's command-line tool, run with a bound on its time and its output.

use std::{
    io::{self, Read},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Most output taken.
const MOST: u64 = 1 << 20;

/// Between two looks at whether it has ended.
const LOOK: Duration = Duration::from_millis(5);

/// Why a tool gave nothing.
#[derive(Debug)]
pub(super) enum NoOutput {
    /// There is no such tool.
    Missing,
    /// It failed or took too long.
    Failed(String),
}

/// Runs a tool; its standard output. It is killed when the time is over.
pub(super) fn output(program: &Path, arguments: &[&str], limit: Duration) -> Result<String, NoOutput> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => NoOutput::Missing,
        _ => NoOutput::Failed(error.to_string()),
    };
    let deadline = Instant::now() + limit;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = loop {
        match command.spawn() {
            // Being replaced by its package.
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                thread::sleep(LOOK);
            }
            spawned => break spawned.map_err(failed)?,
        }
    };
    let stdout = child.stdout.take().expect("standard output was asked for");
    // Read beside it: a tool whose pipe is full never ends.
    let reading = thread::Builder::new().name("tool-output".to_owned()).spawn(move || {
        let mut text = Vec::new();
        let read = stdout.take(MOST).read_to_end(&mut text);
        read.map(|_| String::from_utf8_lossy(&text).into_owned())
    });
    let reading = match reading {
        Ok(reading) => reading,
        Err(error) => {
            end(&mut child);
            return Err(failed(error));
        }
    };
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                end(&mut child);
                return Err(NoOutput::Failed(format!("no answer within {} ms", limit.as_millis())));
            }
            None => thread::sleep(LOOK),
        }
    };
    // A grandchild may hold the pipe open; what it would add is not waited for.
    while !reading.is_finished() {
        if Instant::now() >= deadline {
            return Err(NoOutput::Failed("its output does not end".to_owned()));
        }
        thread::sleep(LOOK);
    }
    let text = reading
        .join()
        .map_err(|_| NoOutput::Failed("its output could not be read".to_owned()))?
        .map_err(failed)?;
    if status.success() {
        Ok(text)
    } else {
        Err(NoOutput::Failed(format!("it ended with {status}")))
    }
}

fn end(child: &mut Child) {
    // Ended meanwhile: then there is nothing to kill.
    let _ = child.kill();
    let _ = child.wait();
}
