//! The connection to the launcher: the failure detector, and the last barrier.

use crate::error::{Error, ErrorKind, Result};
use crate::wait::Limits;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use ucxrun::client::{Control, ControlReader, ControlWriter};
use ucxrun::wire::{RankStats, ToLauncher, ToRank};

/// The launcher's connection after the start; `None` inside for a world without launcher.
#[derive(Debug)]
pub(super) struct Launcher {
    writer: ControlWriter,
    goodbye: Mutex<Receiver<()>>,
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
        Ok(Self {
            writer,
            goodbye: Mutex::new(goodbye),
        })
    }

    /// Leaves the job: returns when all ranks have.
    pub(super) fn leave(&self, limits: &Limits) -> Result<()> {
        self.writer.leave().map_err(lost)?;
        let goodbye = self.goodbye.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Tells the launcher that this rank has failed. The job ends with `code`.
    pub(super) fn failed(&self, code: i32, message: &str) {
        // If the launcher is gone, this process is about to be ended anyway.
        let _ = self.writer.failed(code, message);
    }

    /// Tells the launcher what this rank has done.
    pub(super) fn stats(&self, stats: RankStats) {
        // If it does not come there, it is missing in a table.
        let _ = self.writer.send(&ToLauncher::Stats(stats));
    }

    /// Ends the connection, and with it the thread that listens.
    pub(super) fn close(&self) {
        self.writer.close();
    }
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
