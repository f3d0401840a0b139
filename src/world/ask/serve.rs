//! The owner's side: which memory peers may name, and the desk of the service thread where
//! requests for it are carried out.

#![expect(unsafe_code, reason = "loads, stores and atomics on registered memory")]

use super::wire::{self, Kind, RawPlaces, Refusal, Request, Run, Verdict};
use crate::atomic::{self, AtomicElement, Class};
use crate::element::{self, Element};
use crate::error::Result;
use crate::ucx::{Message, Tags, Worker};
use crate::world::Core;
use crate::world::peers::Peers;
use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory that peers may name in requests. Locked while one request is carried out.
#[derive(Debug, Default)]
pub(crate) struct Served(Mutex<HashMap<u64, Shard>>);

/// Invariant: `base` points to `count` elements of that size, granule and class in registered
/// memory, mapped until the entry is removed, and accessed as shared memory only.
#[derive(Debug)]
struct Shard {
    base: NonNull<u8>,
    count: u64,
    size: usize,
    granule: usize,
    type_hash: u64,
    /// If the elements have atomics.
    class: Option<Class>,
}

// SAFETY: by the invariant the memory is shared memory, which any thread may access.
unsafe impl Send for Shard {}

impl Core {
    /// From now on peers may name `count` elements from `base` on as memory `id` in their
    /// [requests](super::Asks). Where all memory is mapped nobody asks, and this does nothing.
    ///
    /// # Safety
    /// `base` points to that many elements of type `T` in registered memory, which stays mapped
    /// until [`Core::stop_serving`] has returned and is only accessed as shared memory.
    pub(crate) unsafe fn serve_memory<T: Element>(&self, id: u64, base: *mut u8, count: usize) {
        if let (Some(served), Some(base)) = (&self.served, NonNull::new(base)) {
            served.lock().insert(id, Shard::new::<T>(base, count));
        }
    }

    /// No request touches memory `id` any more when this returns.
    pub(crate) fn stop_serving(&self, id: u64) {
        if let Some(served) = &self.served {
            served.remove(id);
        }
    }
}

impl Served {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Shard>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn remove(&self, id: u64) {
        self.lock().remove(&id);
    }

    /// Does what a message asks, whatever bytes it has; the answer to it.
    fn answer(&self, message: &[u8]) -> Vec<u8> {
        wire::answer(wire::decode(message).and_then(|request| {
            if request.kind == Kind::Nothing {
                return Ok(Vec::new());
            }
            let served = self.lock();
            let shard = served.get(&request.memory.id).ok_or_else(|| {
                let text = "the owner has no such memory (any more)";
                Refusal(Verdict::NoSuchMemory, text.into())
            })?;
            shard.carry_out(&request)
        }))
    }
}

impl Shard {
    /// Of `count` elements of type `T`. The caller keeps the invariant.
    fn new<T: Element>(base: NonNull<u8>, count: usize) -> Self {
        Self {
            base,
            count: count as u64,
            size: size_of::<T>(),
            granule: element::granule::<T>(),
            type_hash: element::type_hash::<T>(),
            class: Class::of::<T>(),
        }
    }

    /// All of the request, or nothing of it.
    fn carry_out(&self, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
        self.check(request)?;
        let size = self.size;
        let capacity = if request.kind.answers() {
            // The verdict comes behind.
            request.elements * size + 1
        } else {
            1
        };
        let mut results = Vec::with_capacity(capacity);
        match (request.kind, self.class) {
            (Kind::Nothing, _) => {}
            (Kind::Load, _) => self.load(&request.places, &mut results),
            (Kind::Store, _) => self.store(&request.places, request.values),
            (_, None) => {} // Refused by `check`.
            (_, Some(class)) => self.change(class, request, &mut results),
        }
        Ok(results)
    }

    fn check(&self, request: &Request<'_>) -> Result<(), Refusal> {
        if request.memory.size as usize != self.size || request.memory.type_hash != self.type_hash {
            let text = "the memory holds elements of another type";
            return Err(Refusal(Verdict::WrongElement, text.into()));
        }
        let allowed = match request.kind {
            Kind::Load | Kind::Store | Kind::Nothing => true,
            Kind::CompareExchange => self.class.is_some(),
            Kind::Apply(op) | Kind::Fetch(op) => self.class.is_some_and(|class| class.has(op)),
        };
        let values_fit =
            self.class != Some(Class::Bool) || request.values.iter().all(|&byte| byte < 2);
        if !allowed || !values_fit {
            let text = "the element type has no such operation";
            return Err(Refusal(Verdict::WrongElement, text.into()));
        }
        for run in request.places.runs() {
            if !inside(&run, self.count) {
                let text = format!("{run:?} is outside a shard of {} elements", self.count);
                return Err(Refusal(Verdict::OutOfBounds, text));
            }
        }
        Ok(())
    }

    /// Calls `body` with the address of each element of a checked run, in order.
    fn each(&self, run: &Run, mut body: impl FnMut(*mut u8)) {
        let mut at = self.address(run.start);
        let step = self.bytes(run.step.unsigned_abs());
        for _ in 0..run.count {
            body(at);
            // May leave the shard after the last element: not followed then.
            at = if run.step < 0 {
                at.wrapping_sub(step)
            } else {
                at.wrapping_add(step)
            };
        }
    }

    /// Of the element at `offset`, which has been checked.
    fn address(&self, offset: u64) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.bytes(offset))
    }

    fn bytes(&self, elements: u64) -> usize {
        usize::try_from(elements)
            .unwrap_or(0)
            .wrapping_mul(self.size)
    }

    /// The bytes of a run without gaps; such a run may tear anywhere.
    fn whole(&self, run: &Run) -> Option<usize> {
        (run.step == 1 && run.count > 1).then(|| self.bytes(run.count))
    }

    fn load(&self, places: &RawPlaces<'_>, results: &mut Vec<u8>) {
        let take = |from: *mut u8, results: &mut Vec<u8>| {
            let to = results.spare_capacity_mut()[..self.size].as_mut_ptr();
            // SAFETY: an element of the shard, as checked; room for one in the vector, as just
            // checked too.
            unsafe { element::load_bytes(to.cast(), from, self.size, self.granule) };
            // SAFETY: so many bytes were just written.
            unsafe { results.set_len(results.len() + self.size) };
        };
        for run in places.runs() {
            let Some(len) = self.whole(&run) else {
                self.each(&run, |from| take(from, results));
                continue;
            };
            let to = results.spare_capacity_mut()[..len].as_mut_ptr();
            // SAFETY: elements of the shard, as checked; room for them in the vector.
            unsafe { element::copy(to.cast(), self.address(run.start), len) };
            // SAFETY: so many bytes were just written.
            unsafe { results.set_len(results.len() + len) };
        }
    }

    fn store(&self, places: &RawPlaces<'_>, mut values: &[u8]) {
        for run in places.runs() {
            let Some(len) = self.whole(&run) else {
                self.each(&run, |to| {
                    let (value, rest) = values.split_at(self.size);
                    // SAFETY: an element of the shard, as checked; `value` has its size.
                    unsafe { element::store_bytes(to, value.as_ptr(), self.size, self.granule) };
                    values = rest;
                });
                continue;
            };
            let (value, rest) = values.split_at(len);
            // SAFETY: elements of the shard, as checked; `value` has their size.
            unsafe { element::copy(self.address(run.start), value.as_ptr(), len) };
            values = rest;
        }
    }

    fn change(&self, class: Class, request: &Request<'_>, results: &mut Vec<u8>) {
        macro_rules! by_class {
            ($($class:ident $type:ty),*) => {
                match class {
                    $(Class::$class => self.change_each::<$type>(request, results)),*
                }
            };
        }
        by_class!(
            I8 i8, U8 u8, I16 i16, U16 u16, I32 i32, U32 u32, I64 i64, U64 u64, Bool bool, F32 f32,
            F64 f64
        );
    }

    /// By the processor's atomics on `T`, which is the shard's element or laid out as that.
    fn change_each<T: AtomicElement>(&self, request: &Request<'_>, results: &mut Vec<u8>) {
        let mut values = request
            .values
            .chunks_exact(size_of::<T>())
            .map(|bytes| element::from_bits::<T>(bytemuck::pod_read_unaligned::<T::Bits>(bytes)));
        let fetch = request.kind.answers();
        let mut keep = |before: T| {
            if fetch {
                results.extend_from_slice(bytemuck::bytes_of(&before));
            }
        };
        for run in request.places.runs() {
            match request.kind {
                Kind::Load | Kind::Store | Kind::Nothing => {}
                Kind::Apply(op) | Kind::Fetch(op) => self.each(&run, |at| {
                    // There is one for each element, and each is a `T`, as checked.
                    if let Some(Ok(value)) = values.next() {
                        // SAFETY: an element of the shard, aligned; its granule is its size.
                        keep(unsafe { atomic::fetch_op_at(op, at, value) });
                    }
                }),
                Kind::CompareExchange => self.each(&run, |at| {
                    if let (Some(Ok(current)), Some(Ok(new))) = (values.next(), values.next()) {
                        // SAFETY: as above.
                        keep(unsafe { atomic::compare_exchange_at(at, current, new) });
                    }
                }),
            }
        }
    }
}

/// Whether all elements of the run are among the first `count`.
fn inside(run: &Run, count: u64) -> bool {
    let steps = i128::from(run.count.saturating_sub(1));
    let last = i128::from(run.step)
        .checked_mul(steps)
        .and_then(|way| way.checked_add(run.start.into()));
    let fits = |offset: i128| (0..i128::from(count)).contains(&offset);
    run.count == 0 || (fits(run.start.into()) && last.is_some_and(fits))
}

/// Most messages of one rank that are being received at a time; others wait inside UCX.
const SHARE: usize = 16;
/// Longest message that is looked at: there is none of that size.
const LONGEST: usize = 1 << 30;

/// Where the service thread takes requests and answers them. Never waits: a peer that does not
/// progress its side of a message delays its own requests only.
#[derive(Debug)]
pub(crate) struct Desk {
    served: Arc<Served>,
    /// The way to the askers, from the worker that serves.
    askers: Peers,
    ranks: usize,
    /// In the order of arrival, with the asker's rank.
    incoming: VecDeque<(u64, Message)>,
    answers: Vec<Message>,
}

impl Desk {
    /// `addresses`: where ranks receive messages.
    pub(crate) fn new(worker: Worker, addresses: Vec<Vec<u8>>, served: Arc<Served>) -> Self {
        Self {
            served,
            ranks: addresses.len(),
            askers: Peers::new(worker, addresses),
            incoming: VecDeque::new(),
            answers: Vec::new(),
        }
    }

    /// Does what can be done now; whether there was anything.
    ///
    /// # Errors
    /// In a forked child.
    pub(crate) fn work(&mut self) -> Result<bool> {
        self.askers.worker().context().refuse_fork()?;
        let mut worked = false;
        worked |= self.take_messages();
        if !self.answers.is_empty() {
            self.answers
                .retain_mut(|answer| !matches!(answer.is_done(), Ok(true)));
        }
        // The messages of one rank in the order in which it sent them.
        let mut unfinished = Vec::new();
        for _ in 0..self.incoming.len() {
            let Some((rank, mut message)) = self.incoming.pop_front() else {
                break;
            };
            if unfinished.contains(&rank) || !message.is_done()? {
                unfinished.push(rank);
                self.incoming.push_back((rank, message));
                continue;
            }
            worked = true;
            if let Ok(bytes) = message.wait() {
                self.answer(rank, &bytes);
            }
        }
        Ok(worked)
    }

    /// Takes in what has come, of each rank at most its share; whether there was anything. A message
    /// that cannot be received has no answer: its asker's wait has a limit.
    fn take_messages(&mut self) -> bool {
        let mut any = false;
        loop {
            let first = match self.askers.worker().look_for_message(Tags::ALL) {
                Ok(Some((rank, _))) => rank,
                Ok(None) | Err(_) => return any,
            };
            if self.take_from(first) {
                any = true;
                continue;
            }
            // The others need not wait for a rank that sends more than it helps along.
            for rank in (0..self.ranks as u64).filter(|&rank| rank != first) {
                while self.take_from(rank) {
                    any = true;
                }
            }
            return any;
        }
    }

    /// Takes in the next message of a rank, unless it has its share already.
    fn take_from(&mut self, rank: u64) -> bool {
        let has = self.incoming.iter().filter(|(of, _)| *of == rank).count();
        if has >= SHARE {
            return false;
        }
        let tags = Tags {
            tag: rank,
            mask: u64::MAX,
        };
        match self.askers.worker().take_message(tags, LONGEST) {
            Ok(Some(message)) => {
                self.incoming.push_back(message);
                true
            }
            Ok(None) | Err(_) => false,
        }
    }

    fn answer(&mut self, rank: u64, message: &[u8]) {
        let asker = usize::try_from(rank).ok().filter(|&rank| rank < self.ranks);
        let (Some(asker), Some(ticket)) = (asker, wire::ticket(message)) else {
            return; // Nobody to tell.
        };
        let answer = self.served.answer(message);
        let sent = self.askers.for_messages(asker).and_then(|to| {
            let worker = self.askers.worker();
            worker.post_send(to, wire::answer_tag(ticket), answer)
        });
        // What could not be sent is noticed by the asker, whose wait has a limit.
        self.answers.extend(sent);
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{MemoryName, Places, Work, encode, open_answer, pieces};
    use super::*;
    use crate::atomic::AtomicOp;
    use proptest::prelude::*;

    /// A shard of `u32` between guards.
    struct Memory {
        words: Vec<u32>,
        served: Served,
    }

    const COUNT: usize = 10;
    const GUARD: u32 = 0xdead_beef;

    fn memory<T: Element>(count: usize) -> Memory {
        let mut words = vec![GUARD; COUNT + 8];
        words[4..4 + COUNT].copy_from_slice(&[0; COUNT]);
        let served = Served::default();
        let base = NonNull::new(words[4..].as_mut_ptr().cast::<u8>()).unwrap();
        served.lock().insert(7, Shard::new::<T>(base, count));
        Memory { words, served }
    }

    fn name<T: Element>() -> MemoryName {
        MemoryName {
            id: 7,
            type_hash: element::type_hash::<T>(),
            size: u32::try_from(size_of::<T>()).unwrap(),
        }
    }

    fn ask<T: Element>(memory: &Memory, places: Places<'_>, work: Work<'_>) -> Result<Vec<u8>> {
        let pieces = pieces(places, usize::MAX);
        let bytes = encode(1, &name::<T>(), work.kind(), &pieces[0], work.values());
        let len = if work.kind().answers() {
            pieces[0].elements * size_of::<T>()
        } else {
            0
        };
        open_answer(memory.served.answer(&bytes), len)
    }

    fn words(bytes: &[u8]) -> Vec<u32> {
        bytes
            .chunks_exact(4)
            .map(bytemuck::pod_read_unaligned)
            .collect()
    }

    #[test]
    fn every_kind_of_work() {
        let memory = memory::<u32>(COUNT);
        let bytes = |words: &[u32]| bytemuck::cast_slice::<u32, u8>(words).to_vec();
        let all = [Run {
            start: 0,
            step: 1,
            count: 10,
        }];
        let store = bytes(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        ask::<u32>(&memory, Places::Runs(&all), Work::Store(&store)).unwrap();
        let backwards = [
            Run {
                start: 9,
                step: -3,
                count: 4,
            },
            Run {
                start: 2,
                step: 0,
                count: 2,
            },
        ];
        let got = ask::<u32>(&memory, Places::Runs(&backwards), Work::Load).unwrap();
        assert_eq!(words(&got), [9, 6, 3, 0, 2, 2]);
        let twice = Places::Offsets(&[5, 5, 0]);
        let add = bytes(&[10, 100, 7]);
        let got = ask::<u32>(&memory, twice, Work::Fetch(AtomicOp::Add, &add)).unwrap();
        assert_eq!(words(&got), [5, 15, 0]);
        ask::<u32>(&memory, twice, Work::Apply(AtomicOp::Max, &add)).unwrap();
        let exchange = bytes(&[115, 1, 115, 2, 7, 70]);
        let got = ask::<u32>(&memory, twice, Work::CompareExchange(&exchange)).unwrap();
        assert_eq!(words(&got), [115, 1, 7]);
        let got = ask::<u32>(&memory, Places::Runs(&all), Work::Load).unwrap();
        assert_eq!(words(&got), [70, 1, 2, 3, 4, 1, 6, 7, 8, 9]);
        ask::<u32>(
            &memory,
            Places::Offsets(&[1, 9]),
            Work::Store(&bytes(&[21, 29])),
        )
        .unwrap();
        let got = ask::<u32>(&memory, Places::Offsets(&[9, 8, 1]), Work::Load).unwrap();
        assert_eq!(words(&got), [29, 8, 21]);
        assert!(
            memory.words[..4]
                .iter()
                .chain(&memory.words[14..])
                .all(|&word| word == GUARD)
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_whole() {
        let memory = memory::<u32>(COUNT);
        let value = [1; 8];
        let kind = |answer: Result<Vec<u8>>| answer.unwrap_err().kind();
        use crate::error::ErrorKind::{Closed, OutOfBounds, WrongElement};
        let one_outside = Places::Offsets(&[0, 10]);
        let asked = ask::<u32>(&memory, one_outside, Work::Store(&value));
        assert_eq!(kind(asked), OutOfBounds);
        for run in [
            Run {
                start: 9,
                step: 1,
                count: 2,
            },
            Run {
                start: 0,
                step: -1,
                count: 2,
            },
            Run {
                start: 0,
                step: i64::MAX,
                count: 3,
            },
            Run {
                start: u64::MAX,
                step: i64::MIN,
                count: 2,
            },
        ] {
            let asked = ask::<u32>(&memory, Places::Runs(&[run]), Work::Load);
            assert_eq!(kind(asked), OutOfBounds, "{run:?}");
        }
        let asked = ask::<f32>(&memory, Places::Offsets(&[0]), Work::Load);
        assert_eq!(kind(asked), WrongElement);
        let floats = super::tests::memory::<f32>(COUNT);
        let asked = ask::<f32>(
            &floats,
            Places::Offsets(&[0]),
            Work::Apply(AtomicOp::And, &value[..4]),
        );
        assert_eq!(kind(asked), WrongElement);
        let flags = super::tests::memory::<bool>(COUNT);
        let asked = ask::<bool>(
            &flags,
            Places::Offsets(&[0]),
            Work::Fetch(AtomicOp::Or, &[2]),
        );
        assert_eq!(kind(asked), WrongElement);
        let chars = super::tests::memory::<char>(COUNT);
        let asked = ask::<char>(&chars, Places::Offsets(&[0]), Work::CompareExchange(&value));
        assert_eq!(kind(asked), WrongElement);
        memory.served.remove(7);
        let asked = ask::<u32>(&memory, Places::Offsets(&[0]), Work::Load);
        assert_eq!(kind(asked), Closed);
        assert!(
            memory.words[4..14].iter().all(|&word| word == 0),
            "nothing was done"
        );
    }

    proptest! {
        /// Whatever a message says, only the shard is touched, and there is an answer.
        #[test]
        fn mutated_messages_stay_inside(
            flips in prop::collection::vec((0_usize..120, any::<u8>()), 0..6), len in 0_usize..120, cut in any::<bool>(), work in 0..5,
        ) {
            let memory = memory::<u32>(COUNT);
            let values = [3; 32];
            let work = match work {
                0 => Work::Load,
                1 => Work::Store(&values[..16]),
                2 => Work::Apply(AtomicOp::Add, &values[..16]),
                3 => Work::Fetch(AtomicOp::Min, &values[..16]),
                _ => Work::CompareExchange(&values),
            };
            let runs = [Run { start: 1, step: 2, count: 3 }, Run { start: 9, step: 1, count: 1 }];
            let pieces = pieces(Places::Runs(&runs), usize::MAX);
            let mut bytes = encode(1, &name::<u32>(), work.kind(), &pieces[0], work.values());
            for (at, value) in flips {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            if cut {
                bytes.truncate(len);
            }
            let answer = memory.served.answer(&bytes);
            prop_assert!(!answer.is_empty());
            prop_assert!(memory.words[..4].iter().chain(&memory.words[14..]).all(|&word| word == GUARD));
        }
    }
}
