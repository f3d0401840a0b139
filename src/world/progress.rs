//! The thread that serves this rank's memory to peers that cannot map it.
//!
//! Over tcp every get, put and atomic is carried out at its target by whoever progresses the
//! target's worker. A second worker of the same context, which nobody else uses, does that
//! here, so that a rank that computes or sleeps answers at once. The same thread carries out
//! aggregated requests: see [`Desk`]. See the folder's README.

use super::ask::Desk;
use super::bells::Bells;
use super::node::Block;
use crate::error::Result;
use crate::ucx::Worker;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long to poll on after something happened: the next request of the same peer is often
/// near, and waking up costs more than it takes to serve it.
const POLL_FOR: Duration = Duration::from_micros(20);
/// Longest sleep. Requests and [`Worker::wake`] end it early.
const NAP: Duration = Duration::from_millis(500);

/// The service thread and its worker. Stops when dropped.
#[derive(Debug)]
pub(super) struct Service {
    worker: Worker,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// `block`: the node's, if there is one.
    pub(super) fn start(worker: Worker, mut desk: Desk, block: Option<Arc<Block>>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = super::spawn("pgas-progress", {
            let (worker, stop) = (worker.clone(), stop.clone());
            move || {
                let bells = match &block {
                    Some(block) => block.bells(),
                    None => Bells::of_this_process(),
                };
                serve(&worker, &mut desk, bells, &stop);
            }
        })?;
        Ok(Self {
            worker,
            stop,
            thread: Some(thread),
        })
    }
}

fn serve(worker: &Worker, desk: &mut Desk, bells: &Bells, stop: &AtomicBool) {
    let mut last = Instant::now();
    while !stop.load(Ordering::Acquire) {
        let moved = worker.progress();
        match moved.and_then(|moved| Ok(desk.work()? | moved)) {
            Ok(true) => {
                // It may have been a put.
                bells.ring_all();
                last = Instant::now();
            }
            Ok(false) if last.elapsed() < POLL_FOR => std::thread::yield_now(),
            // Nothing for a while: sleep until UCX's descriptor says otherwise. Should it fail,
            // peers see it as an operation that does not complete.
            Ok(false) => {
                if worker.sleep(NAP).is_err() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Err(_) => return, // A forked child.
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if self.worker.context().is_forked() {
            return; // The thread is the parent's.
        }
        self.worker.end();
        self.stop.store(true, Ordering::Release);
        self.worker.wake();
        if let Some(thread) = self.thread.take() {
            // It cannot panic; if it did, there is nobody left to tell.
            let _ = thread.join();
        }
    }
}
