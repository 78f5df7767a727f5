//! The life of a candidate: fold along, take over, lead, step down, from the beginning.
//!
//! A candidate in a cell with others folds continuously, so that what remains to do when the leader goes is one append.
//! It learns that the leader went from silence: a missed beat makes it ask, and only if nobody listens where a leader
//! would, or nothing is heard for two seconds, does it take over. Being wrong about that costs a change of leader, never
//! a record. Without others (embedded) it takes over at once.
//!
//! Invariants: what stands in the way is visible in the status, with a code; every retry is paced; whoever submits
//! meanwhile is answered, not left waiting.

use std::sync::Arc;
use std::time::Duration;

use tidemill_domain::time::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::SequencerConfig;
use super::append;
use super::core::{Core, Planned};
use super::handle::{CandidateHandle, Local};
use super::lead::{End, Item, Leader, Reply, answer};
use super::replica::Replica;
use super::reserve::Watch;
use super::shared::{Shared, keep_checkpoint};
use super::status::{CandidateStatus, Counters, Role};
use super::trouble::Trouble;
use crate::backoff::Backoff;
use crate::checkpoint::Checkpoint;
use crate::commands::SubmitError;
use crate::fold::{FoldError, Prepared};
use crate::ledger::{Ledger, ReadError};
use crate::remote::{self, Beats, NatsTransport, Presence, RemoteCommands};

/// Silence after which a standby asks whether someone leads: a beat and a half.
const QUIET: Duration = Duration::from_millis(750);

/// Silence, unanswered questions included, after which a standby takes over.
const SILENCE: Duration = Duration::from_secs(2);

/// Pause between two questions that got no answer.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Candidates act up to this long apart, by name, so that they seldom collide.
const STAGGER: Duration = Duration::from_millis(200);

/// Pause before a try that folds the whole ledger again.
const SLOW: Duration = Duration::from_secs(30);

/// A leadership that lasted this long was a good one: the next trouble begins with short pauses again.
const SETTLED: Duration = Duration::from_secs(10);

/// Most records folded at once between looks at the other things.
const BATCH: usize = 256;

/// A candidate that could not be started.
#[derive(Debug, thiserror::Error)]
#[error("the sequencer's thread could not be started: {0}")]
pub struct StartError(#[from] std::io::Error);

impl StartError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        "sequencer_thread"
    }
}

/// A sequencer that leads or stands by to.
pub struct Candidate {
    shared: Arc<Shared>,
    transport: Option<NatsTransport>,
    local: Local,
    intake: mpsc::Receiver<Item>,
    reserve: Watch,
    stagger: Duration,
}

impl Candidate {
    /// Starts on a thread of its own. With a transport it shares the cell with other candidates; without, it is the only
    /// one. Call from within a tokio runtime.
    ///
    /// When `shutdown` is cancelled it takes no more commands, finishes the record in flight, answers, writes its
    /// checkpoint and ends: await [`CandidateHandle::ended`].
    pub fn start(
        config: SequencerConfig,
        ledger: Arc<dyn Ledger>,
        transport: Option<NatsTransport>,
        shutdown: CancellationToken,
    ) -> Result<CandidateHandle, StartError> {
        let (sender, intake) = mpsc::channel(config.intake);
        let status = watch::Sender::new(CandidateStatus {
            role: Role::Starting,
            epoch: 0,
            sequence: 0,
            leader: String::new(),
        });
        let counters: Arc<Counters> = Arc::default();
        let local = Local {
            intake: sender,
            status: status.subscribe(),
            counters: Arc::clone(&counters),
            shutdown: shutdown.clone(),
        };
        let outside = tokio::runtime::Handle::current();
        let name = blake3::hash(config.name.as_bytes());
        let candidate = Self {
            stagger: STAGGER * u32::from(name.as_bytes()[0]) / 256,
            reserve: Watch::new(config.disk.clone()),
            shared: Arc::new(Shared::new(
                config,
                ledger,
                status,
                counters,
                shutdown,
                outside,
                transport.is_none(),
            )),
            transport: transport.clone(),
            local: local.clone(),
            intake,
        };
        let ended = CancellationToken::new();
        let handle = CandidateHandle::new(local, transport.as_ref().map(RemoteCommands::new), ended.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new()
            .name("sequencer".to_owned())
            .spawn(move || {
                // Also when the thread panics: whoever waits for the end gets it.
                let _ended = ended.drop_guard();
                runtime.block_on(candidate.run());
            })?;
        Ok(handle)
    }

    async fn run(mut self) {
        let ended = CancellationToken::new();
        let checkpoint = self.shared.config.checkpoint.clone().map(|path| {
            let ledger_id = self.shared.ledger.genesis().ledger_id;
            let anchors = self.shared.checkpoint.subscribe();
            tokio::spawn(keep_checkpoint(path, ledger_id, anchors, ended.clone()))
        });
        let mut backoff = Backoff::new();
        let mut replica = None;
        loop {
            let began = Instant::now();
            let trouble = match self.cycle(&mut replica).await {
                Ok(End::Shutdown) => break,
                Ok(End::SteppedDown(trouble)) => self.shared.judge(trouble),
                // Not leading yet: what stood in the way may have been an own record, late; folded, it does no more.
                Err(trouble) => trouble,
            };
            if began.elapsed() >= SETTLED {
                backoff.reset();
            }
            if trouble.ordinary {
                tracing::info!(code = trouble.code, reason = trouble.reason, "standing by");
            }
            self.shared.show(&trouble);
            if !self.refuse(&trouble, &mut backoff).await {
                break;
            }
        }
        self.shared.set_role(Role::Stopped);
        self.intake.close();
        while let Ok(item) = self.intake.try_recv() {
            answer(item.reply, Err(SubmitError::ShuttingDown));
        }
        ended.cancel();
        if let Some(checkpoint) = checkpoint {
            // It only writes a file; a panic in there has been logged.
            let _ = checkpoint.await;
        }
    }

    /// Answers everyone with the trouble, until it is time to try again. False on shutdown.
    async fn refuse(&mut self, trouble: &Trouble, backoff: &mut Backoff) -> bool {
        let pause = async {
            match trouble {
                Trouble { terminal: true, .. } => std::future::pending().await,
                Trouble { slow: true, .. } => tokio::time::sleep(SLOW).await,
                _ => backoff.pause().await,
            }
        };
        tokio::pin!(pause);
        loop {
            tokio::select! {
                biased;
                () = self.shared.shutdown.cancelled() => return false,
                () = &mut pause => return true,
                Some(item) = self.intake.recv() => answer(item.reply, Err(trouble.submit_error())),
            }
        }
    }

    async fn cycle(&mut self, slot: &mut Option<Replica>) -> Result<End, Trouble> {
        let shutdown = self.shared.shutdown.clone();
        match shutdown.run_until_cancelled(self.get_ready(slot)).await {
            None => return Ok(End::Shutdown),
            Some(Err(trouble)) => return Err(trouble),
            Some(Ok(())) => {}
        }
        let Some(replica) = slot.take() else {
            return Ok(End::SteppedDown(Trouble::deposed("nothing is folded yet")));
        };
        let unsaved_events = replica.unsaved_events;
        let core = self.take_over(replica).await?;
        Ok(self.lead(core, unsaved_events).await)
    }

    /// Folds, and stands by where others may lead, until this candidate is to take over.
    async fn get_ready(&mut self, slot: &mut Option<Replica>) -> Result<(), Trouble> {
        let shared = Arc::clone(&self.shared);
        self.check_standing().await?;
        let mut replica = match slot.take() {
            Some(replica) => replica,
            None => Replica::load(&*shared.ledger, shared.snapshots.as_ref())
                .await
                .map_err(|error| Trouble::from(&error))?,
        };
        let mut outcome = replica
            .catch_up(&shared.ledger)
            .await
            .map_err(|error| fold_trouble(&error));
        if outcome.is_ok() {
            self.note(&mut replica);
            if let Some(transport) = self.transport.clone() {
                shared.set_role(Role::Standby);
                outcome = self.stand_by(&mut replica, &transport).await;
            }
        }
        match outcome {
            Ok(()) => {}
            // The fold is sound: only what was to come next could not be had.
            Err((trouble, true)) => {
                *slot = Some(replica);
                return Err(trouble);
            }
            Err((trouble, false)) => return Err(trouble),
        }
        *slot = Some(replica);
        match self.reserve.low(&*shared.ledger).await {
            Some(low) => Err(low.clone()),
            None => Ok(()),
        }
    }

    /// Compares the ledger with what this server last knew of it.
    async fn check_standing(&self) -> Result<(), Trouble> {
        let Some(path) = &self.shared.config.checkpoint else {
            return Ok(());
        };
        let Some(checkpoint) = Checkpoint::load(path).map_err(|error| Trouble::from(&error))? else {
            return Ok(());
        };
        let standing = checkpoint.compare(&*self.shared.ledger).await;
        let standing = standing.map_err(|error| Trouble::from(&FoldError::from(error)))?;
        if standing.is_sound() {
            return Ok(());
        }
        Err(Trouble::from_standing(&standing))
    }

    /// Says how far the fold is and saves a snapshot now and then.
    fn note(&self, replica: &mut Replica) {
        let cell = &replica.fold().state().cell;
        self.shared.set_leader_name(&cell.leader);
        self.shared.set_sequence(cell.epoch, replica.head());
        if replica.unsaved_events >= self.shared.config.snapshot_every
            && self
                .shared
                .save_snapshot(|| replica.encode_snapshot(&*self.shared.ledger))
        {
            replica.unsaved_events = 0;
        }
    }

    /// Folds along until nobody leads. An error says besides whether the fold may be kept.
    async fn stand_by(&mut self, replica: &mut Replica, transport: &NatsTransport) -> Result<(), (Trouble, bool)> {
        let shared = Arc::clone(&self.shared);
        let follow = shared.ledger.follow(replica.head().sequence + 1).await;
        let mut follow = follow.map_err(|error| fold_trouble(&error.into()))?;
        let mut beats = Beats::new(transport);
        let mut heard = Instant::now();
        let mut ask = heard + self.stagger;
        loop {
            tokio::select! {
                batch = follow.next_batch(BATCH) => {
                    let folded = batch.map_err(FoldError::from).and_then(|batch| {
                        batch.iter().try_for_each(|raw| replica.record(Prepared::of(raw)))
                    });
                    folded.map_err(|error| fold_trouble(&error))?;
                    self.note(replica);
                    heard = Instant::now();
                    ask = heard + QUIET;
                }
                beat = beats.next() => {
                    if beat.epoch >= replica.fold().state().cell.epoch {
                        shared.set_leader_name(&beat.leader);
                        heard = Instant::now();
                        ask = heard + if beat.leaving { self.stagger } else { QUIET };
                    }
                }
                Some(item) = self.intake.recv() => {
                    let reason = "this process does not lead".to_owned();
                    answer(item.reply, Err(SubmitError::NoLeader { reason }));
                }
                () = tokio::time::sleep_until(ask) => match transport.presence().await {
                    Presence::Nobody => break,
                    Presence::Leads => {
                        heard = Instant::now();
                        ask = heard + QUIET;
                    }
                    Presence::Silent if heard.elapsed() >= SILENCE + self.stagger => break,
                    Presence::Silent => ask = Instant::now() + ASK_AGAIN,
                }
            }
        }
        replica
            .catch_up(&shared.ledger)
            .await
            .map_err(|error| fold_trouble(&error))?;
        self.note(replica);
        Ok(())
    }

    /// Appends the record that begins this candidate's epoch, and reads it back.
    async fn take_over(&mut self, replica: Replica) -> Result<Core<Reply>, Trouble> {
        let shared = Arc::clone(&self.shared);
        let (fold, dedupe) = replica.into_parts();
        let config = &shared.config;
        let genesis = shared.ledger.genesis();
        let taken = Core::take_over(genesis, fold, dedupe, &config.name, &config.version, shared.now());
        let (core, planned) = taken.map_err(|broken| Trouble::from(&broken))?;
        append::append(&*shared.ledger, &planned, config.patience)
            .await
            .map_err(|lost| Trouble::from(&lost))?;
        self.read_back(&planned).await?;
        Counters::add(&shared.counters.takeovers, 1);
        shared.set_leader_name(&config.name);
        shared.set_sequence(core.epoch(), core.head());
        tracing::info!(
            code = "leading",
            epoch = core.epoch(),
            sequence = core.head().sequence,
            recorded_at = %Timestamp(core.state().recorded_at.0),
            "this process leads"
        );
        Ok(core)
    }

    async fn read_back(&self, planned: &Planned) -> Result<(), Trouble> {
        let deadline = Instant::now() + self.shared.config.patience;
        let sequence = planned.record.anchor.sequence;
        let mut backoff = Backoff::new();
        loop {
            match self.shared.ledger.read(sequence, 1, 1).await {
                Ok(stored) if stored.first().is_some_and(|raw| raw.body == planned.record.bytes) => return Ok(()),
                Err(ReadError::Unavailable { .. }) if Instant::now() < deadline => backoff.pause().await,
                Ok(_) => return Err(Trouble::marker_not_read_back(sequence)),
                Err(error) => return Err(Trouble::from(&FoldError::from(error))),
            }
        }
    }

    async fn lead(&mut self, core: Core<Reply>, unsaved_events: u64) -> End {
        let shared = Arc::clone(&self.shared);
        let (deposed, ended) = (CancellationToken::new(), CancellationToken::new());
        let me = (shared.config.name.clone(), core.epoch());
        shared.set_leader();
        let outward = self.transport.clone().map(|transport| {
            let local = self.local.clone();
            let submit = move |envelope, body_hash| {
                let local = local.clone();
                async move { local.submit(envelope, body_hash).await }
            };
            let status = shared.status.subscribe();
            shared.outside.spawn(remote::lead(
                transport,
                status,
                me.clone(),
                submit,
                deposed.clone(),
                ended.clone(),
            ))
        });
        let leader = Leader::new(
            core,
            &shared,
            &mut self.intake,
            deposed,
            &mut self.reserve,
            unsaved_events,
        );
        let end = leader.run().await;
        ended.cancel();
        if let (Some(outward), Some(transport)) = (outward, &self.transport) {
            // It ends by itself once `ended` is cancelled; a dead connection must not hold the process up.
            let _ = tokio::time::timeout(QUIET, outward).await;
            if matches!(end, End::Shutdown) {
                let sequence = shared.status.borrow().sequence;
                remote::announce_leaving(transport, &me.0, me.1, sequence).await;
            }
        }
        end
    }
}

/// The trouble, and whether the fold it came up with may go on from where it stands.
fn fold_trouble(error: &FoldError) -> (Trouble, bool) {
    let transient = matches!(error, FoldError::Read(error) if error.is_transient());
    (Trouble::from(error), transient)
}
