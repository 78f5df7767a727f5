//! `logs`: an instance's output, copied through as it comes.
//!
//! Bytes are not touched: what a workload writes is its own business, encodings included.

use std::io::Write;

use clap::Args;

use super::follow::until_interrupt;
use crate::api::{Query, segment};
use crate::cli::GlobalArgs;
use crate::exit::CliError;
use crate::output::note;

const EXAMPLES: &str = "\
Examples:
  tidemill logs inst-7k2
  tidemill logs hello
  tidemill logs inst-7k2 -f | grep ERROR";

/// Arguments of `logs`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LogsArgs {
    /// The instance, a unique prefix of its id, or a service that has one instance only
    pub instance: String,
    /// Go on as output comes
    #[arg(short, long)]
    pub follow: bool,
}

/// Runs `logs`.
pub async fn run(args: LogsArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let path = format!("/v1/logs/{}", segment(&args.instance));
    let query = Query::default().with("follow", args.follow);
    let mut stream = global.connect()?.stream(&path, &query).await?;
    let copy = async {
        while let Some(chunk) = stream.next_chunk().await? {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(&chunk)?;
            stdout.flush()?;
        }
        Ok(())
    };
    match until_interrupt(copy).await {
        Some(result) => result,
        None => {
            note("stopped following; the instance runs on");
            Ok(())
        }
    }
}
