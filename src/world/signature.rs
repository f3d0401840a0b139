//! What a rank says of the collective it calls, so that a mismatch is found, not computed with.

use crate::element::Element;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The collectives, in the sense of "must be called by all ranks together".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u16)]
pub(crate) enum Call {
    Barrier,
    Broadcast,
    AllGather,
    AllReduce,
    NewArray,
    FromLocal,
    Read,
    Local,
    Atomics,
    Update,
    Exchange,
    EndMode,
    CloseArray,
    Finish,
}

impl Call {
    const ALL: [Self; 14] = [
        Self::Barrier,
        Self::Broadcast,
        Self::AllGather,
        Self::AllReduce,
        Self::NewArray,
        Self::FromLocal,
        Self::Read,
        Self::Local,
        Self::Atomics,
        Self::Update,
        Self::Exchange,
        Self::EndMode,
        Self::CloseArray,
        Self::Finish,
    ];

    pub(super) fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// One rank's description of its call; equal on all ranks of a correct program.
///
/// Plain words, so that it fits a cache line of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Signature {
    pub(crate) call: Call,
    /// The root rank, the operator, or the step of a call that takes several exchanges.
    pub(crate) detail: u32,
    /// Elements in all, or the number of the array.
    pub(crate) count: u64,
    /// Size and name of the element type; 0 where there is none.
    pub(crate) element: u64,
}

impl Signature {
    pub(crate) fn new(call: Call) -> Self {
        Self {
            call,
            detail: 0,
            count: 0,
            element: 0,
        }
    }

    pub(crate) fn detail(mut self, detail: usize) -> Self {
        self.detail = u32::try_from(detail).unwrap_or(u32::MAX);
        self
    }

    pub(crate) fn count(mut self, count: usize) -> Self {
        self.count = count as u64;
        self
    }

    pub(crate) fn element<T: Element>(mut self) -> Self {
        self.element = crate::element::type_hash::<T>();
        self
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count;
        match self.call {
            Call::Barrier => write!(f, "barrier"),
            Call::Broadcast => write!(f, "broadcast of {count} elements from rank {}", self.detail),
            Call::AllGather => write!(f, "all_gather of {count} elements"),
            Call::AllReduce => write!(f, "all_reduce of {count} elements"),
            Call::NewArray => write!(f, "creation of an array of {count} elements"),
            Call::FromLocal => write!(f, "GlobalArray::from_local"),
            Call::Read => write!(f, "read() of array {count}"),
            Call::Local => write!(f, "local() of array {count}"),
            Call::Atomics => write!(f, "atomics() of array {count}"),
            Call::Update => write!(f, "update() of array {count}"),
            Call::Exchange => write!(f, "an exchange of array {count}"),
            Call::EndMode => write!(f, "the end of a view of array {count}"),
            Call::CloseArray => write!(f, "close() of array {count}"),
            Call::Finish => write!(f, "the end of the program"),
        }
    }
}

/// Why `mine` and `other` do not go together, naming both ranks.
pub(super) fn mismatch(mine: (usize, &Signature), other: (usize, &Signature)) -> String {
    let ((a, one), (b, two)) = (mine, other);
    let why = if one.call == two.call && one.count == two.count && one.element != two.element {
        " with another element type"
    } else if one.call == two.call && one.count == two.count && one.call == Call::NewArray {
        " with another shape or distribution"
    } else if one.call == two.call && one.count == two.count {
        " with another operator or root"
    } else {
        ""
    };
    format!("rank {a} called {one} while rank {b} called {two}{why}")
}
