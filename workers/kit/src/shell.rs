//! The loop around a worker's core.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tidemill_bus::commands::{Answer, Commands, SubmitError};
use tidemill_bus::observations::Observations;
use tidemill_bus::view::{Progress, StateView};
use tidemill_domain::command::Envelope;
use tidemill_domain::rejection::Rejection;
use tidemill_domain::time::{Span, Timestamp};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ask::{Asked, Asker, Outcome};
use crate::backoff::Backoff;
use crate::clock::{LedgerClock, span};
use crate::pump::{self, Batch};
use crate::status::{WorkerState, WorkerStatus, enter};
use crate::term::TermKeeper;
use crate::worker::{StepInput, Worker, earliest};

/// Most commands of one worker under way at a time. A step's further wishes wait for these.
pub const IN_FLIGHT: usize = 64;
/// How long to wait for the view to show what was answered, before looking at the state as it is.
const VIEW_PATIENCE: Duration = Duration::from_secs(10);
/// How often a command whose outcome is not known is asked again under its id before it is left to the next step.
const UNKNOWN_TRIES: u32 = 8;
/// Between two steps, so that a stream of records does not mean a step for each.
const SHORTEST_GAP: Duration = Duration::from_millis(1);
const LONGEST_GAP: Duration = Duration::from_millis(250);

/// What a worker is started with.
#[derive(Clone)]
pub struct Setup {
    /// The state it looks at.
    pub view: Arc<StateView>,
    /// Where it asks.
    pub commands: Arc<dyn Commands>,
    /// What it may observe.
    pub observations: Arc<dyn Observations>,
    /// Name of this process, unique in the cell and the same after a restart: then the role need not lapse first.
    pub holder: String,
}

/// A running worker.
#[derive(Debug)]
pub struct WorkerHandle {
    /// Its role.
    pub role: &'static str,
    /// What it does.
    pub status: watch::Receiver<WorkerStatus>,
    task: JoinHandle<()>,
}

impl WorkerHandle {
    /// Waits until it has ended, which it does when its shutdown token says so.
    pub async fn ended(self) {
        if let Err(error) = self.task.await
            && error.is_panic()
        {
            tracing::error!(role = self.role, %error, "the worker broke");
        }
    }
}

/// Starts a worker. It ends when `shutdown` is cancelled; nothing it asked for is taken back then.
pub fn spawn<W: Worker>(worker: W, setup: Setup, shutdown: CancellationToken) -> WorkerHandle {
    let status = watch::Sender::new(WorkerStatus::new(W::ROLE));
    let receiver = status.subscribe();
    let task = tokio::spawn(async move {
        let (term, held) = watch::channel(None);
        let stale = Arc::new(Notify::new());
        let keeper = TermKeeper {
            role: W::ROLE,
            holder: setup.holder.clone(),
            view: Arc::clone(&setup.view),
            commands: Arc::clone(&setup.commands),
            status: status.clone(),
            term,
            stale: Arc::clone(&stale),
        };
        let shell = Shell {
            worker,
            asker: Asker::new(W::ROLE),
            clock: LedgerClock::default(),
            began: Instant::now(),
            setup,
            status: status.clone(),
            held,
            stale,
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = keeper.run() => {}
            () = shell.run(shutdown.clone()) => {}
        }
        enter(&status, WorkerState::Stopped, None);
    });
    WorkerHandle {
        role: W::ROLE,
        status: receiver,
        task,
    }
}

struct Shell<W> {
    worker: W,
    asker: Asker,
    clock: LedgerClock,
    began: Instant,
    setup: Setup,
    status: watch::Sender<WorkerStatus>,
    held: watch::Receiver<Option<u64>>,
    stale: Arc<Notify>,
}

/// What came of a step.
struct Stepped {
    /// How long the core took.
    thought: Duration,
    /// When to look again though nothing changes.
    wake: Option<Instant>,
    /// Something stands in the way of everything: pause before the next step.
    hindered: Option<SubmitError>,
}

impl<W: Worker> Shell<W> {
    async fn run(mut self, shutdown: CancellationToken) {
        let mut progress = self.setup.view.progress();
        let reads = self.setup.view.read(|state| self.worker.reads(state));
        let mut batches = pump::start(W::ROLE, Arc::clone(&self.setup.observations), reads, shutdown);
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let mut wake: Option<Instant> = None;
        loop {
            self.woken(&mut progress, &mut batches, wake).await;
            self.take_in(&mut batches);
            let Some(term) = *self.held.borrow_and_update() else {
                wake = None;
                continue;
            };
            let last = *progress.borrow_and_update();
            let stepped = self.step(term, last).await;
            wake = stepped.wake;
            match stepped.hindered {
                Some(error) => {
                    let state = WorkerState::BackingOff {
                        code: error.code().to_owned(),
                        reason: error.to_string(),
                    };
                    enter(&self.status, state, Some(term));
                    tokio::time::sleep(backoff.pause()).await;
                    wake = Some(Instant::now());
                }
                None => {
                    backoff.reset();
                    enter(&self.status, WorkerState::Holding, Some(term));
                    // Thinking takes at most half of the time, whatever the size of the pool and the rate of changes.
                    tokio::time::sleep(stepped.thought.clamp(SHORTEST_GAP, LONGEST_GAP)).await;
                }
            }
        }
    }

    /// Waits until there is a reason to look.
    async fn woken(
        &mut self,
        progress: &mut watch::Receiver<Progress>,
        batches: &mut Option<mpsc::Receiver<Batch>>,
        wake: Option<Instant>,
    ) {
        let batch = tokio::select! {
            changed = progress.changed() => {
                if changed.is_err() {
                    // The view has ended with the process around it.
                    std::future::pending::<()>().await;
                }
                None
            }
            batch = next(batches) => Some(batch),
            _ = self.held.changed() => None,
            () = until(wake) => None,
        };
        if let Some(batch) = batch {
            self.observe(batch);
        }
    }

    /// Takes in what observations wait, up to what the pump holds.
    fn take_in(&mut self, batches: &mut Option<mpsc::Receiver<Batch>>) {
        while let Some(batch) = batches.as_mut().and_then(|b| b.try_recv().ok()) {
            self.observe(batch);
        }
    }

    fn observe(&mut self, batch: Batch) {
        if batch.missed {
            self.worker.missed();
        }
        self.worker.observe(&batch.blocks, span(self.began.elapsed()));
        self.status.send_modify(|status| {
            status.unreadable += batch.unreadable;
            status.observed = batch.blocks.last().map_or(status.observed, |b| b.sequence);
        });
    }

    async fn step(&mut self, term: u64, last: Progress) -> Stepped {
        let mono = self.began.elapsed();
        self.clock.see(last.sequence, last.recorded_at, mono);
        let (now, step, looked_at) = self.setup.view.read(|state| {
            let now = self.clock.now(state.recorded_at, mono);
            let input = StepInput {
                state,
                now,
                mono: span(mono),
            };
            (now, self.worker.step(input), state.sequence)
        });
        let thought = self.began.elapsed().saturating_sub(mono);
        let (asked, retry) = self.asker.prepare(step.wishes, term, span(mono));
        let (hindered, refused) = self.ask(asked, looked_at).await;
        self.status.send_modify(|status| {
            status.steps += 1;
            status.last_step = Some(now);
        });
        // A refusal changes nothing that would wake the worker, so its own alarm must.
        let retry = earliest(retry, refused);
        let mono_wake = earliest(step.wake_mono, retry).map(|at| self.began + at.to_std());
        let ledger_wake = step.wake_at.map(|at| Instant::now() + lead(now, at));
        Stepped {
            thought,
            wake: earliest(mono_wake, ledger_wake),
            hindered,
        }
    }

    /// Submits, and waits until all answers are in the view. Answers what stands in the way of everything, if anything,
    /// and when the first of the wishes that changed nothing may be asked again.
    async fn ask(&mut self, asked: Vec<Asked>, looked_at: u64) -> (Option<SubmitError>, Option<Span>) {
        if asked.is_empty() {
            return (None, None);
        }
        let mut refused = None;
        let commands = Arc::clone(&self.setup.commands);
        let mut answers = futures::stream::iter(asked)
            .map(|asked| {
                let commands = Arc::clone(&commands);
                async move {
                    let answer = submit(&*commands, &asked.envelope).await;
                    (asked, answer)
                }
            })
            .buffer_unordered(IN_FLIGHT);
        let mut reached = looked_at;
        let mut hindered = None;
        while let Some((asked, answer)) = answers.next().await {
            let name = asked.envelope.command.name();
            let outcome = match answer {
                Ok(answer) => {
                    reached = reached.max(answer.sequence);
                    // An old answer, already in the state that was looked at, brings nothing new.
                    let fresh = !answer.events.is_empty() && answer.sequence > looked_at;
                    if fresh { Outcome::Done } else { Outcome::NoChange }
                }
                Err(SubmitError::Rejected { rejection, sequence }) => {
                    reached = reached.max(sequence);
                    self.refused(name, &rejection);
                    Outcome::NoChange
                }
                Err(SubmitError::Conflict { sequence }) => {
                    reached = reached.max(sequence);
                    Outcome::NoChange
                }
                Err(error) => {
                    hindered = Some(error);
                    Outcome::NotAsked
                }
            };
            if outcome == Outcome::Done {
                self.status.send_modify(|status| status.commands += 1);
            }
            let mono = span(self.began.elapsed());
            refused = earliest(refused, self.asker.answered(asked, outcome, mono));
        }
        if !self.setup.view.wait_for(reached, VIEW_PATIENCE).await && hindered.is_none() {
            hindered = Some(SubmitError::Unknown {
                reason: format!("the state has not come to record {reached}"),
            });
        }
        (hindered, refused)
    }

    fn refused(&self, command: &'static str, rejection: &Rejection) {
        if matches!(rejection, Rejection::StaleTerm { .. }) {
            self.stale.notify_one();
        }
        let code = rejection.code();
        tracing::debug!(role = W::ROLE, command, code, %rejection, "refused");
        self.status.send_modify(|status| {
            status.refused += 1;
            status.last_error = Some(format!("{command}: {rejection} [{code}]"));
        });
    }
}

/// Submits one command; an unknown outcome is resolved by asking again under the same id.
async fn submit(commands: &dyn Commands, envelope: &Envelope) -> Result<Answer, SubmitError> {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    let mut tries = 0;
    loop {
        match commands.submit(envelope.clone()).await {
            Err(SubmitError::Unknown { .. }) if tries < UNKNOWN_TRIES => {
                tries += 1;
                tokio::time::sleep(backoff.pause()).await;
            }
            answer => return answer,
        }
    }
}

async fn next(batches: &mut Option<mpsc::Receiver<Batch>>) -> Batch {
    let Some(receiver) = batches else {
        return std::future::pending().await;
    };
    match receiver.recv().await {
        Some(batch) => batch,
        None => std::future::pending().await,
    }
}

async fn until(wake: Option<Instant>) {
    match wake {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// From `now` to `at`, a little more, so that it is over by the sequencer's clock too.
fn lead(now: Timestamp, at: Timestamp) -> Duration {
    at.since(now).to_std() + Duration::from_millis(5)
}
