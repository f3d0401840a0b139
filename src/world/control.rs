//! The connection to whoever started the ranks: the failure detector, and the last barrier.

use super::bootstrap::deadline_in;
use super::bootstrap::manager::Manager;
use super::exit;
use crate::error::{Error, ErrorKind, Result};
use crate::wait::Limits;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use ucxrun::client::{Control, ControlReader, ControlWriter};
use ucxrun::wire::{RankStats, ToLauncher, ToRank};

/// The connection to whoever started the ranks, after the start.
#[derive(Debug)]
pub(super) struct Launcher(Way);

#[derive(Debug)]
enum Way {
    /// A launcher of ours, which tells of failures and shows the message of the first.
    Control {
        writer: ControlWriter,
        goodbye: Mutex<Receiver<()>>,
    },
    /// One that ends the job when a rank fails.
    Manager {
        rank: usize,
        manager: Arc<Mutex<Box<dyn Manager>>>,
    },
}

impl Launcher {
    /// Starts the thread that listens to the launcher and ends all waits when it reports a
    /// failure.
    pub(super) fn listen(control: Control, limits: Arc<Limits>) -> Result<Self> {
        let (reader, writer) = control.split();
        let (said_goodbye, goodbye) = channel();
        let answers = writer.clone();
        super::spawn("pgas-control", move || {
            listen(reader, &answers, &limits, &said_goodbye);
        })?;
        let goodbye = Mutex::new(goodbye);
        Ok(Self(Way::Control { writer, goodbye }))
    }

    /// Starts the thread that ends this rank when its process manager is gone.
    pub(super) fn watch(manager: Box<dyn Manager>, limits: Arc<Limits>) -> Result<Self> {
        let wait = manager.watch()?;
        super::spawn("pgas-control", move || {
            wait();
            if !limits.is_closed() {
                super::die_without_launcher();
            }
        })?;
        let rank = manager.rank();
        let manager = Arc::new(Mutex::new(manager));
        exit::watch(manager.clone(), rank);
        Ok(Self(Way::Manager { rank, manager }))
    }

    /// Leaves the job: returns when all ranks have.
    pub(super) fn leave(&self, limits: &Limits) -> Result<()> {
        let (writer, goodbye) = match &self.0 {
            Way::Control { writer, goodbye } => (writer, goodbye),
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
            Way::Control { writer, .. } => {
                let _ = writer.failed(code, message);
            }
            Way::Manager { rank, manager } => {
                exit::told();
                report(*rank, message);
                // Held by a thread that is leaving: then the exit code of this process says it.
                if let Ok(mut manager) = manager.try_lock() {
                    manager.abort(code, message);
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

    /// Ends the connection, and with it the thread that listens.
    pub(super) fn close(&self) {
        match &self.0 {
            Way::Control { writer, .. } => writer.close(),
            Way::Manager { manager, .. } => manager
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .close(),
        }
    }
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

fn listen(
    mut reader: ControlReader,
    answers: &ControlWriter,
    limits: &Limits,
    goodbye: &Sender<()>,
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
                let mut error = Error::new(ErrorKind::PeerFailed, text);
                if let Some(rank) = rank {
                    error = error.with_peer(rank as usize);
                }
                limits.fail(error);
                // Ends a wait for the goodbye, which looks for the failure.
                let _ = goodbye.send(());
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
                super::die_without_launcher();
            }
        }
    }
}
