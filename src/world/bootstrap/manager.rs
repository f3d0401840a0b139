//! A process manager that is no launcher of ours.

use crate::error::Result;
use std::fmt;
use std::time::Instant;

/// What a world needs of whoever started its ranks. Calls may take until their deadline.
///
/// None of them tells a rank that another has died: they end the job instead.
pub(in crate::world) trait Manager: fmt::Debug + Send {
    fn rank(&self) -> usize;

    fn size(&self) -> usize;

    /// All ranks' blobs, by rank. Collective.
    fn gather(&mut self, blob: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>>;

    /// Returns when all ranks have called it. Collective.
    fn wait_for_all(&mut self, deadline: Instant) -> Result<()>;

    /// Says that this rank has ended well.
    fn finalize(&mut self) -> Result<()>;

    /// Asks for the end of the whole job. It may end this process at once.
    fn abort(&mut self, code: i32, message: &str);

    /// A function that returns when the manager is gone, or after `close`.
    fn watch(&self) -> Result<Box<dyn FnOnce() + Send>>;

    /// Ends the connection.
    fn close(&self);
}
