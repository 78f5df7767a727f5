//! Watching: ask again until interrupted, draw again when the answer changed.
//!
//! Kept: an interrupt ends the watching and nothing else, and says so; while the control plane is away the last answer
//! stays and the reason is said once, since an operator watching an incident needs both. Rejected: a cursor-addressed
//! screen; whole redraws survive every terminal, and a pipe simply gets each changed version.

use std::future::Future;
use std::io::IsTerminal;
use std::time::Duration;

use crate::exit::{CliError, Exit};
use crate::output::{note, print};

/// How often a watched list is asked for again.
const PERIOD: Duration = Duration::from_secs(1);

/// Longest pause between attempts while no server answers.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Home, then clear to the end.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Prints what `render` gives, again whenever it changed, until interrupted.
pub async fn watch<F>(mut render: impl FnMut() -> F) -> Result<(), CliError>
where
    F: Future<Output = Result<String, CliError>>,
{
    let terminal = std::io::stdout().is_terminal();
    let mut shown: Option<String> = None;
    let mut pause = PERIOD;
    let mut away = false;
    loop {
        let turn = async {
            match render().await {
                Ok(text) => {
                    if std::mem::take(&mut away) {
                        note("the control plane answers again");
                    }
                    pause = PERIOD;
                    if shown.as_ref() != Some(&text) {
                        if terminal {
                            print(CLEAR)?;
                        } else if shown.is_some() {
                            print("\n")?;
                        }
                        print(&text)?;
                        shown = Some(text);
                    }
                }
                Err(error) if error.exit == Exit::Unreachable && shown.is_some() => {
                    if !std::mem::replace(&mut away, true) {
                        note(&format!("still watching, but: {error}"));
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(error) => return Err(error),
            }
            tokio::time::sleep(pause).await;
            Ok(())
        };
        match until_interrupt(turn).await {
            Some(result) => result?,
            None => {
                note("stopped watching; nothing was cancelled");
                return Ok(());
            }
        }
    }
}

/// The future's output, or `None` when the user interrupted first.
pub async fn until_interrupt<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        output = work => Some(output),
        result = tokio::signal::ctrl_c() => match result {
            Ok(()) => None,
            // Without a handler the signal ends the process by itself, so there is nothing to wait for here.
            Err(_) => std::future::pending().await,
        },
    }
}
