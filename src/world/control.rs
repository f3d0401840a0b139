//! The connection to whoever started the ranks: the failure detector, and the last barrier.

use super::bootstrap::deadline_in;
use super::bootstrap::manager::Manager;
use super::bootstrap::store::Keeper;
use super::exit;
use crate::error::{Error, ErrorKind, Result};
use crate::wait::Limits;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use ucxrun::client::{Control, ControlReader, ControlWriter};
use ucxrun::wire::{RankStats, ToLauncher, ToRank, exit as exit_code};

/// Says why this rank ends.
const GONE: &str = "the launcher is gone, so this rank ends";

/// The connection to whoever started the ranks, after the start.
#[derive(Debug)]
pub(super) struct Launcher(Way);

#[derive(Debug)]
enum Way {
    /// A launcher of ours, which tells of failures and shows the message of the first.
    Control {
        writer: ControlWriter,
        goodbye: Mutex<Receiver<()>>,
        /// If rank 0 keeps the job together: who this rank is, and what rank 0 has for that.
        stored: Option<Stored>,
    },
    /// One that ends the job when a rank fails.
    Manager {
        rank: usize,
        manager: Arc<Mutex<Box<dyn Manager>>>,
    },
}

#[derive(Debug)]
struct Stored {
    rank: usize,
    keeper: Mutex<Option<Keeper>>,
}

impl Stored {
    fn keeper(&self) -> MutexGuard<'_, Option<Keeper>> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Launcher {
    /// Starts the thread that listens to the launcher and ends all waits when it reports a
    /// failure. `store`: rank 0 keeps the job together, and on rank 0, what it has for that. Then
    /// nobody ends ranks, and they do it themselves.
    pub(super) fn listen(
        control: Control,
        limits: Arc<Limits>,
        store: Option<Option<Keeper>>,
    ) -> Result<Self> {
        let rank = control.rank() as usize;
        let stored = store.map(|keeper| Stored {
            rank,
            keeper: Mutex::new(keeper),
        });
        let alone = stored.is_some();
        let (reader, writer) = control.split();
        let (said_goodbye, goodbye) = channel();
        let answers = writer.clone();
        super::spawn("pgas-control", move || {
            listen(reader, &answers, &limits, &said_goodbye, alone);
        })?;
        let goodbye = Mutex::new(goodbye);
        Ok(Self(Way::Control {
            writer,
            goodbye,
            stored,
        }))
    }

    /// Starts the thread that ends this rank when its process manager is gone.
    pub(super) fn watch(manager: Box<dyn Manager>, limits: Arc<Limits>) -> Result<Self> {
        let wait = manager.watch()?;
        super::spawn("pgas-control", move || {
            wait();
            if !limits.is_closed() {
                super::die(exit_code::LAUNCHER, GONE);
            }
        })?;
        let rank = manager.rank();
        let manager = Arc::new(Mutex::new(manager));
        exit::watch(manager.clone());
        Ok(Self(Way::Manager { rank, manager }))
    }

    /// Leaves the job: returns when all ranks have.
    pub(super) fn leave(&self, limits: &Limits) -> Result<()> {
        let (writer, goodbye) = match &self.0 {
            Way::Control {
                writer, goodbye, ..
            } => (writer, goodbye),
            Way::Manager { manager, .. } => {
                let mut manager = manager.lock().unwrap_or_else(PoisonError::into_inner);
                manager.wait_for_all(deadline_in(limits.timeout()))?;
                // From now on the manager may go away: that is the normal end.
                limits.close();
                exit::told();
                return manager.finalize();
            }
        };
        writer.leave().map_err(lost)?;
        let goodbye = goodbye.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = match limits.timeout() {
            Some(limit) => goodbye.recv_timeout(limit),
            None => goodbye.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        limits.check()?;
        waited.map_err(|error| match error {
            RecvTimeoutError::Timeout => Error::new(
                ErrorKind::Timeout,
                "the end of the program: some ranks did not come",
            ),
            RecvTimeoutError::Disconnected => Error::new(
                ErrorKind::Bootstrap,
                "the end of the program: the launcher is gone",
            ),
        })
    }

    /// Tells that this rank has failed. The job ends with `code`.
    pub(super) fn failed(&self, code: i32, message: &str) {
        match &self.0 {
            // If the launcher is gone, this process is about to be ended anyway.
            Way::Control { writer, stored, .. } => {
                if let Some(stored) = stored {
                    report(stored.rank, message);
                }
                let _ = writer.failed(code, message);
                if let Some(keeper) = stored.as_ref().and_then(|s| s.keeper().take()) {
                    keeper.wait_until_told();
                }
            }
            Way::Manager { rank, manager } => {
                exit::told();
                // Held by a thread that is leaving: then the exit code of this process says it.
                match manager.try_lock() {
                    Ok(mut manager) => abort(&mut **manager, code, message),
                    Err(_) => report(*rank, message),
                }
            }
        }
    }

    /// Tells the launcher what this rank has done.
    pub(super) fn stats(&self, stats: RankStats) {
        // If it does not come there, it is missing in a table.
        if let Way::Control { writer, .. } = &self.0 {
            let _ = writer.send(&ToLauncher::Stats(stats));
        }
    }

    /// Tells the launcher something that the curious may want to know.
    pub(super) fn notice(&self, text: String) {
        if let Way::Control {
            writer,
            stored: None,
            ..
        } = &self.0
        {
            // As above.
            let _ = writer.send(&ToLauncher::Notice { text });
        }
    }

    /// Ends the connection, and with it the thread that listens.
    pub(super) fn close(&self) {
        match &self.0 {
            Way::Control { writer, stored, .. } => {
                writer.close();
                if let Some(stored) = stored {
                    // Waits for the others.
                    drop(stored.keeper().take());
                }
            }
            Way::Manager { manager, .. } => manager
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .close(),
        }
    }
}

/// Says why this rank fails, then has its job ended.
pub(super) fn abort(manager: &mut dyn Manager, code: i32, message: &str) {
    report(manager.rank(), message);
    // Hydra throws away what it has not read when it is asked to end the job.
    std::thread::sleep(Duration::from_millis(50));
    manager.abort(code, message);
}

/// Says why rank `rank` fails, where no launcher of ours does.
pub(super) fn report(rank: usize, message: &str) {
    use std::io::Write as _;
    // In one write, as other ranks write there too; there may be no standard error left.
    let line = format!("pgas: rank {rank}: {message}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn lost(error: ucxrun::Error) -> Error {
    Error::new(ErrorKind::Bootstrap, error.to_string())
}

/// Gives the program some time to end because of a failure, then ends it: nobody else would.
fn end_within_grace(limits: &Limits, failure: &str) {
    let until = Instant::now() + ucxrun::GRACE;
    while Instant::now() < until {
        if limits.is_closed() {
            return; // It is about to.
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let why = format!("this rank ends, as {failure}");
    super::die(exit_code::BROKEN, &why);
}

fn listen(
    mut reader: ControlReader,
    answers: &ControlWriter,
    limits: &Limits,
    goodbye: &Sender<()>,
    alone: bool,
) {
    loop {
        match reader.next() {
            Ok(Some(ToRank::Goodbye)) => {
                // The world may have stopped waiting.
                let _ = goodbye.send(());
                // From now on the launcher may go away: that is the normal end.
                return;
            }
            Ok(Some(ToRank::PeerFailed { rank, message })) => {
                let text = match rank {
                    Some(rank) => format!("rank {rank} failed: {message}"),
                    None => message,
                };
                let failure = text.clone();
                let mut error = Error::new(ErrorKind::PeerFailed, text);
                if let Some(rank) = rank {
                    error = error.with_peer(rank as usize);
                }
                limits.fail(error);
                // Ends a wait for the goodbye, which looks for the failure.
                let _ = goodbye.send(());
                if alone {
                    end_within_grace(limits, &failure);
                    return;
                }
            }
            Ok(Some(ToRank::PeerLost { rank, message })) => {
                let rank = rank as usize;
                let text = format!("rank {rank} failed: {message}");
                limits.lose(
                    rank,
                    Error::new(ErrorKind::PeerFailed, text).with_peer(rank),
                );
            }
            Ok(Some(ToRank::Report)) => {
                // What a rank does that is in no collective, the system knows better.
                if let Some(what) = limits.waiting() {
                    let _ = answers.send(&ToLauncher::Doing { what });
                }
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => {
                if limits.is_closed() {
                    return;
                }
                // Without its launcher a rank can neither learn of failures nor be ended by
                // anybody: it would go on for ever.
                super::die(exit_code::LAUNCHER, GONE);
            }
        }
    }
}
