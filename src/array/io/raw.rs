//! Files of nothing but elements.

use super::Transfer;
use crate::array::GlobalArray;
use crate::element::Element;
use crate::error::Result;
use std::path::Path;

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// Writes all elements to a file, as their bytes are in memory and nothing else, in C order. What
    /// was at `path` is replaced when all is written.
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at the beginning and the end. In a cyclic
    /// distribution, whose runs are too short to be written one by one, the array is copied for it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) on all ranks if one cannot write, with the rank, the
    /// path and the cause, and then the file is as it was; else as [`GlobalArray::read`].
    #[track_caller]
    pub fn save_raw(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.save_raw_with(path, &Transfer::new())
    }

    /// As [`GlobalArray::save_raw`], in an order of elements and with a word on the progress.
    ///
    /// # Errors
    /// As [`GlobalArray::save_raw`].
    #[track_caller]
    pub fn save_raw_with(&mut self, path: impl AsRef<Path>, transfer: &Transfer) -> Result<()> {
        self.save_elements(path.as_ref(), &[], transfer)
    }

    /// Fills the array with what is in a file from byte `offset` on: elements as their bytes are in
    /// memory, in C order. What follows them is ignored.
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at the beginning and the end.
    ///
    /// # Errors
    /// On all ranks: [`ErrorKind::Io`](crate::ErrorKind::Io) if one cannot read, or if the file is too
    /// short; [`ErrorKind::InvalidValue`](crate::ErrorKind::InvalidValue) if its bytes are no `T`.
    /// Then elements have old values or new ones. Else as [`GlobalArray::local`].
    #[track_caller]
    pub fn load_raw(&mut self, path: impl AsRef<Path>, offset: u64) -> Result<()> {
        self.load_raw_with(path, offset, &Transfer::new())
    }

    /// As [`GlobalArray::load_raw`], in an order of elements and with a word on the progress.
    ///
    /// # Errors
    /// As [`GlobalArray::load_raw`].
    #[track_caller]
    pub fn load_raw_with(
        &mut self,
        path: impl AsRef<Path>,
        offset: u64,
        transfer: &Transfer,
    ) -> Result<()> {
        self.load_elements(path.as_ref(), offset, transfer, &|_| ())
    }
}
