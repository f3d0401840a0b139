//! Futures without an executor.

use super::Team;
use crate::wait::Patience;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Longest sleep between two looks: a future may wait for something that wakes nobody here.
const NAP: Duration = Duration::from_millis(1);

impl Team {
    /// Runs a future to its end on this thread, and communication with it: a
    /// [`Request`](crate::Request), or any number of them combined.
    ///
    /// One-sided. Other futures than requests are looked at again at least once a millisecond.
    ///
    /// ```no_run
    /// # fn f(world: &pgas::World, array: &pgas::GlobalArray<f64>) -> pgas::Result<()> {
    /// let sum = world.block_on(async {
    ///     let (a, b) = (array.get_async(0)?, array.get_async(1)?);
    ///     Ok::<_, pgas::Error>(a.await? + b.await?)
    /// })?;
    /// # let _ = sum; Ok(())
    /// # }
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        let mut patience = Patience::new();
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            match patience.pause(&self.core.limits) {
                Ok(None) => {}
                Ok(Some(nap)) => {
                    let slept = self.core.worker.sleep(nap.min(NAP));
                    if slept.is_err() {
                        std::thread::sleep(NAP);
                    }
                }
                // Requests say so themselves; what else the future waits for has no limit.
                Err(_) => {
                    std::thread::sleep(NAP);
                    patience = Patience::new();
                }
            }
        }
    }
}
