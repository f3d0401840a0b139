//! What a rank says of the collective it calls, so that a mismatch is found, not computed with.

use crate::element::Element;
use crate::operator::NUMBERS;
use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::panic::Location;

/// The collectives, in the sense of "must be called by all ranks together".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u16)]
pub(crate) enum Call {
    Barrier,
    IBarrier,
    Broadcast,
    AllGather,
    AllReduce,
    Reduce,
    Scan,
    Arg,
    ArgSlice,
    Gather,
    Scatter,
    AllToAll,
    ReduceScatter,
    Split,
    Stage,
    Refused,
    NewArray,
    FromLocal,
    Read,
    Local,
    Atomics,
    Update,
    Exchange,
    Accumulate,
    EndMode,
    CloseArray,
    Finish,
}

impl Call {
    const ALL: [Self; 27] = [
        Self::Barrier,
        Self::IBarrier,
        Self::Broadcast,
        Self::AllGather,
        Self::AllReduce,
        Self::Reduce,
        Self::Scan,
        Self::Arg,
        Self::ArgSlice,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::ReduceScatter,
        Self::Split,
        Self::Stage,
        Self::Refused,
        Self::NewArray,
        Self::FromLocal,
        Self::Read,
        Self::Local,
        Self::Atomics,
        Self::Update,
        Self::Exchange,
        Self::Accumulate,
        Self::EndMode,
        Self::CloseArray,
        Self::Finish,
    ];

    pub(super) fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// In the detail of what combines, from low bits to high: the operator's number, the root of a
/// reduction (17 bits), and whether it is of objects. In an all-to-all there is the last only.
const ROOT_AT: u32 = NUMBERS.trailing_zeros();
const OBJECTS: u32 = 1 << 31;
/// In the place of a root in a scan: without the rank itself.
const EXCLUSIVE: u32 = 1 << ROOT_AT;

/// One rank's description of its call; equal on all ranks of a correct program.
///
/// Plain words, so that it fits a cache line of shared memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Signature {
    pub(crate) call: Call,
    /// The root rank, the operator, or the step of a call that takes several exchanges.
    pub(crate) detail: u32,
    /// Elements in all, or the number of the array.
    pub(crate) count: u64,
    /// Name, size and alignment of the element type; 0 where there is none.
    pub(crate) element: u64,
    /// Where this rank's program calls it. Not a part of what ranks must agree on.
    #[serde(skip)]
    pub(crate) site: Option<&'static Location<'static>>,
}

impl PartialEq for Signature {
    fn eq(&self, other: &Self) -> bool {
        (self.call, self.detail, self.count, self.element)
            == (other.call, other.detail, other.count, other.element)
    }
}

impl Signature {
    /// Of the place that calls, through functions that say `#[track_caller]`.
    #[track_caller]
    pub(crate) fn new(call: Call) -> Self {
        Self {
            call,
            detail: 0,
            count: 0,
            element: 0,
            site: Some(Location::caller()),
        }
    }

    /// Where it is called, for people.
    pub(super) fn place(&self) -> Place {
        match self.site {
            Some(site) => Place::new(site.file(), site.line()),
            None => Place::NOWHERE,
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
        const { assert!(size_of::<T>() > 0, "elements must have a size") };
        self.element = crate::element::type_hash::<T>();
        self
    }
}

impl Signature {
    /// That of objects of type `T`.
    pub(crate) fn object<T>(mut self) -> Self {
        self.element = !crate::element::type_hash::<T>();
        self
    }

    /// That of a call which combines or exchanges objects of type `T`, not elements.
    pub(super) fn objects<T>(mut self) -> Self {
        self.detail |= OBJECTS;
        self.object::<T>()
    }

    /// That of a reduction to rank `root`. No job has 2^17 ranks.
    pub(super) fn root(mut self, root: usize) -> Self {
        self.detail |= u32::try_from(root).unwrap_or(0) << ROOT_AT;
        self
    }

    /// That of a scan without the rank itself.
    pub(super) fn exclusive(mut self) -> Self {
        self.detail |= EXCLUSIVE;
        self
    }

    /// What a call which combines or exchanges is given, for people.
    fn what(&self) -> String {
        match (self.call, self.detail & OBJECTS != 0) {
            (Call::AllToAll | Call::ReduceScatter, true) => format!("{} objects", self.count),
            (_, true) => "an object".into(),
            (_, false) => format!("{} elements", self.count),
        }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count;
        match self.call {
            Call::Barrier => write!(f, "barrier"),
            Call::IBarrier => write!(f, "ibarrier"),
            Call::Broadcast if count == u64::MAX => {
                write!(f, "broadcast of an object from rank {}", self.detail)
            }
            Call::Broadcast => write!(f, "broadcast of {count} elements from rank {}", self.detail),
            Call::AllGather if self.detail == 1 => write!(f, "all_gather of an object"),
            Call::AllGather => write!(f, "all_gather of {count} elements"),
            Call::AllReduce => write!(f, "all_reduce of {}", self.what()),
            Call::Reduce => {
                let root = (self.detail & !OBJECTS) >> ROOT_AT;
                write!(f, "reduce of {} to rank {root}", self.what())
            }
            Call::Scan if self.detail & EXCLUSIVE != 0 => write!(f, "exscan of {}", self.what()),
            Call::Scan => write!(f, "scan of {}", self.what()),
            Call::Arg => write!(f, "arg_min or arg_max"),
            Call::ArgSlice => write!(f, "arg_min_slice or arg_max_slice"),
            Call::Gather => write!(f, "gather to rank {}", self.detail),
            Call::Scatter => write!(f, "scatter from rank {}", self.detail),
            Call::AllToAll if self.detail & OBJECTS != 0 => {
                write!(f, "all_to_all of {}", self.what())
            }
            Call::AllToAll => write!(f, "all_to_all"),
            Call::ReduceScatter => write!(f, "reduce_scatter of {}", self.what()),
            Call::Split => write!(f, "split into teams"),
            Call::Stage => write!(f, "making room for large collectives"),
            Call::Refused => write!(f, "something that was refused there"),
            Call::NewArray => write!(f, "creation of an array of {count} elements"),
            Call::FromLocal => write!(f, "GlobalArray::from_local"),
            Call::Read => write!(f, "read() of array {count}"),
            Call::Local => write!(f, "local() of array {count}"),
            Call::Atomics => write!(f, "atomics() of array {count}"),
            Call::Update => write!(f, "update() of array {count}"),
            Call::Exchange => write!(f, "an exchange of array {count}"),
            Call::Accumulate => write!(f, "accumulate_halo() of array {count}"),
            Call::EndMode => write!(f, "the end of a view of array {count}"),
            Call::CloseArray => write!(f, "close() of array {count}"),
            Call::Finish => write!(f, "the end of the program"),
        }
    }
}

/// A hash of the calls of one rank: if those of two ranks differ, so do the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct History(u64);

impl History {
    pub(super) fn add(&mut self, signature: &Signature) {
        let first = u64::from(signature.detail) << 16 | signature.call as u64;
        for word in [first, signature.count, signature.element] {
            // An odd factor: nothing is lost.
            self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    pub(super) fn short(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// A line of a source file, small enough for shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Place {
    line: u32,
    /// The end of the file's name, and zeros.
    file: [u8; FILE],
}

/// With the line a cache line.
const FILE: usize = 60;

impl Place {
    pub(super) const NOWHERE: Self = Self {
        line: 0,
        file: [0; FILE],
    };

    pub(super) fn new(name: &str, line: u32) -> Self {
        let mut file = [0; FILE];
        let name = name.as_bytes();
        let name = &name[name.len().saturating_sub(FILE)..];
        file[..name.len()].copy_from_slice(name);
        Self { line, file }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return Ok(());
        }
        let file = String::from_utf8_lossy(&self.file);
        write!(f, " at {}:{}", file.trim_end_matches('\0'), self.line)
    }
}

/// Why the calls of two ranks do not go together: each is a rank, its call, and where.
pub(super) fn mismatch(
    mine: (usize, &Signature, &str),
    other: (usize, &Signature, &str),
) -> String {
    let ((a, one, here), (b, two, there)) = (mine, other);
    let why = if one.call == two.call && one.count == two.count && one.element != two.element {
        " with another element type"
    } else if one.call == two.call && one.count == two.count && one.call == Call::NewArray {
        " with another shape or distribution"
    } else if one.call == two.call && one.count == two.count {
        " with another operator or root"
    } else {
        ""
    };
    format!("rank {a} called {one}{here} while rank {b} called {two}{there}{why}")
}
