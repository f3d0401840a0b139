//! The bytes of a request and of its answer. Nothing that arrives is trusted: what decodes is
//! consistent in itself, and is then checked against the memory it names (`serve.rs`).
//!
//! ```text
//! request   ticket u64 | memory u64 | type hash u64 | places u64 | element size u32
//!           | kind u8 | operation u8 | form of places u8 | 0 u8 | places | values
//! places    offsets u64, or runs (start u64, step i64, count u64); in elements of the shard
//! answer    values, or text | verdict u8
//! ```
//! All little-endian.

use crate::atomic::AtomicOp;
use crate::error::{Error, ErrorKind};

/// Most bytes of places, of values and of an answer's values, unless one element is larger.
pub(super) const PLACES: usize = 64 << 10;
pub(super) const VALUES: usize = 64 << 10;
pub(super) const ANSWER: usize = 256 << 10;
/// Longest text of a refusal.
pub(super) const TEXT: usize = 200;

const HEADER: usize = 40;
const OFFSET: usize = 8;
const RUN: usize = 24;

/// Tag of the answer to a request. The tags of collectives have no bit 63.
pub(super) fn answer_tag(ticket: u64) -> u64 {
    1 << 63 | ticket
}

/// Elements of a shard at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Offset of the first, in elements.
    pub(crate) start: u64,
    /// From one to the next.
    pub(crate) step: i64,
    pub(crate) count: u64,
}

/// Which elements of the shard.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Places<'a> {
    Offsets(&'a [u64]),
    Runs(&'a [Run]),
}

/// What to do with the elements at the places, in their order. Values are the elements' bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work<'a> {
    /// Answered with the elements.
    Load,
    /// One value for each element.
    Store(&'a [u8]),
    /// As `Store`, combined atomically.
    Apply(AtomicOp, &'a [u8]),
    /// As `Apply`; answered with the elements as they were before.
    Fetch(AtomicOp, &'a [u8]),
    /// Two values for each element: stores the second if the element is the first. Answered with
    /// the elements as they were before.
    CompareExchange(&'a [u8]),
}

/// A [`Work`] without its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Load,
    Store,
    Apply(AtomicOp),
    Fetch(AtomicOp),
    CompareExchange,
    /// What was posted before is done when it is answered.
    Nothing,
}

impl<'a> Work<'a> {
    pub(super) fn kind(&self) -> Kind {
        match *self {
            Self::Load => Kind::Load,
            Self::Store(_) => Kind::Store,
            Self::Apply(op, _) => Kind::Apply(op),
            Self::Fetch(op, _) => Kind::Fetch(op),
            Self::CompareExchange(_) => Kind::CompareExchange,
        }
    }

    pub(super) fn values(&self) -> &'a [u8] {
        match *self {
            Self::Load => &[],
            Self::Store(values)
            | Self::Apply(_, values)
            | Self::Fetch(_, values)
            | Self::CompareExchange(values) => values,
        }
    }
}

impl Kind {
    /// Values that travel with each element.
    pub(super) fn values_each(self) -> usize {
        match self {
            Self::Load | Self::Nothing => 0,
            Self::Store | Self::Apply(_) | Self::Fetch(_) => 1,
            Self::CompareExchange => 2,
        }
    }

    /// Whether the answer has the elements.
    pub(super) fn answers(self) -> bool {
        !matches!(self, Self::Store | Self::Apply(_) | Self::Nothing)
    }

    fn to_bytes(self) -> [u8; 2] {
        let number = |op| {
            let place = AtomicOp::ALL.iter().position(|&one| one == op);
            place.map_or(u8::MAX, |place| place.to_le_bytes()[0])
        };
        match self {
            Self::Load => [0, 0],
            Self::Store => [1, 0],
            Self::Apply(op) => [2, number(op)],
            Self::Fetch(op) => [3, number(op)],
            Self::CompareExchange => [4, 0],
            Self::Nothing => [5, 0],
        }
    }

    fn from_bytes([kind, op]: [u8; 2]) -> Option<Self> {
        let op = AtomicOp::ALL.get(usize::from(op)).copied()?;
        match (kind, op) {
            (0, AtomicOp::Add) => Some(Self::Load),
            (1, AtomicOp::Add) => Some(Self::Store),
            (2, op) => Some(Self::Apply(op)),
            (3, op) => Some(Self::Fetch(op)),
            (4, AtomicOp::Add) => Some(Self::CompareExchange),
            (5, AtomicOp::Add) => Some(Self::Nothing),
            _ => None,
        }
    }
}

/// What a request says of the memory it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryName {
    /// As it was registered with [`Core::serve_memory`](crate::world::Core::serve_memory).
    pub(crate) id: u64,
    pub(crate) type_hash: u64,
    pub(crate) size: u32,
}

/// Encodes a request: `places` are the bytes of so many places, `values` those that go with them.
pub(super) fn encode(
    ticket: u64,
    memory: &MemoryName,
    kind: Kind,
    places: &EncodedPlaces,
    values: &[u8],
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + places.bytes.len() + values.len());
    bytes.extend_from_slice(&ticket.to_le_bytes());
    bytes.extend_from_slice(&memory.id.to_le_bytes());
    bytes.extend_from_slice(&memory.type_hash.to_le_bytes());
    bytes.extend_from_slice(&places.count.to_le_bytes());
    bytes.extend_from_slice(&memory.size.to_le_bytes());
    bytes.extend_from_slice(&kind.to_bytes());
    bytes.extend_from_slice(&[u8::from(places.runs), 0]);
    bytes.extend_from_slice(&places.bytes);
    bytes.extend_from_slice(values);
    bytes
}

/// Places of one request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct EncodedPlaces {
    bytes: Vec<u8>,
    count: u64,
    runs: bool,
    /// How many elements they name.
    pub(super) elements: usize,
}

/// `places` in pieces of at most `most` elements each, and of at most [`PLACES`] bytes.
pub(super) fn pieces(places: Places<'_>, most: usize) -> Vec<EncodedPlaces> {
    match places {
        Places::Offsets(offsets) => offsets
            .chunks(most.clamp(1, PLACES / OFFSET))
            .map(|part| EncodedPlaces {
                bytes: part
                    .iter()
                    .flat_map(|offset| offset.to_le_bytes())
                    .collect(),
                count: part.len() as u64,
                runs: false,
                elements: part.len(),
            })
            .collect(),
        Places::Runs(runs) => pieces_of_runs(runs, most.max(1)),
    }
}

fn pieces_of_runs(runs: &[Run], most: usize) -> Vec<EncodedPlaces> {
    let empty = || EncodedPlaces {
        bytes: Vec::new(),
        count: 0,
        runs: true,
        elements: 0,
    };
    let mut pieces = Vec::new();
    let mut piece = empty();
    for run in runs {
        let mut run = *run;
        while run.count > 0 {
            let room = most - piece.elements;
            if room == 0 || piece.bytes.len() + RUN > PLACES {
                pieces.push(std::mem::replace(&mut piece, empty()));
                continue;
            }
            let count = usize::try_from(run.count).unwrap_or(usize::MAX).min(room);
            piece.bytes.extend_from_slice(&run.start.to_le_bytes());
            piece.bytes.extend_from_slice(&run.step.to_le_bytes());
            piece.bytes.extend_from_slice(&(count as u64).to_le_bytes());
            piece.count += 1;
            piece.elements += count;
            let count = count as u64;
            // Wraps only for places that no shard has: the owner refuses them.
            run.start = run
                .start
                .wrapping_add_signed(run.step.wrapping_mul(count.cast_signed()));
            run.count -= count;
        }
    }
    if piece.count > 0 {
        pieces.push(piece);
    }
    pieces
}

/// A request whose parts fit together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub(super) memory: MemoryName,
    pub(super) kind: Kind,
    pub(super) places: RawPlaces<'a>,
    /// How many elements the places name.
    pub(super) elements: usize,
    /// Of `kind.values_each()` values for each element.
    pub(super) values: &'a [u8],
}

/// Encoded places of the right length.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RawPlaces<'a> {
    Offsets(&'a [[u8; OFFSET]]),
    Runs(&'a [[u8; RUN]]),
}

impl RawPlaces<'_> {
    /// The places as runs, in order.
    pub(super) fn runs(&self) -> impl Iterator<Item = Run> {
        let (offsets, runs): (&[_], &[_]) = match self {
            RawPlaces::Offsets(offsets) => (offsets, &[]),
            RawPlaces::Runs(runs) => (&[], runs),
        };
        let offsets = offsets.iter().map(|bytes| Run {
            start: u64::from_le_bytes(*bytes),
            step: 1,
            count: 1,
        });
        offsets.chain(runs.iter().map(|bytes| {
            let words = bytes.as_chunks::<8>().0;
            Run {
                start: u64::from_le_bytes(words[0]),
                step: i64::from_le_bytes(words[1]),
                count: u64::from_le_bytes(words[2]),
            }
        }))
    }
}

/// The ticket of a request, by which its asker knows the answer; if there is as much as that.
pub(super) fn ticket(bytes: &[u8]) -> Option<u64> {
    let ticket = u64::from_le_bytes(*bytes.first_chunk()?);
    (ticket < 1 << 63).then_some(ticket)
}

/// The request that [`encode`] wrote.
///
/// # Errors
/// A refusal unless the parts fit together and the answer is of bounded size.
pub(super) fn decode(bytes: &[u8]) -> Result<Request<'_>, Refusal> {
    let malformed = |why: &str| Refusal(Verdict::Malformed, format!("garbled request: {why}"));
    let (header, body) = bytes
        .split_first_chunk::<HEADER>()
        .ok_or_else(|| malformed("too short"))?;
    let words = header.as_chunks::<8>().0;
    let [size @ .., kind, op, form, zero] = words[4];
    let kind = Kind::from_bytes([kind, op]).ok_or_else(|| malformed("no such operation"))?;
    let memory = MemoryName {
        id: u64::from_le_bytes(words[1]),
        type_hash: u64::from_le_bytes(words[2]),
        size: u32::from_le_bytes(size),
    };
    let size = memory.size as usize;
    let count = usize::try_from(u64::from_le_bytes(words[3])).ok();
    let each = match (form, zero) {
        (0, 0) => OFFSET,
        (1, 0) => RUN,
        _ => return Err(malformed("no such form of places")),
    };
    let (places, values) = count
        .and_then(|count| body.split_at_checked(count.checked_mul(each)?))
        .ok_or_else(|| malformed("too few places"))?;
    let places = if each == RUN {
        RawPlaces::Runs(places.as_chunks().0)
    } else {
        RawPlaces::Offsets(places.as_chunks().0)
    };
    let elements = match &places {
        RawPlaces::Offsets(offsets) => Some(offsets.len()),
        RawPlaces::Runs(_) => places
            .runs()
            .try_fold(0_u64, |sum, run| sum.checked_add(run.count))
            .and_then(|sum| usize::try_from(sum).ok()),
    };
    let bytes_of = |values_each: usize| elements?.checked_mul(size)?.checked_mul(values_each);
    if size == 0 || bytes_of(kind.values_each()) != Some(values.len()) {
        return Err(malformed("too few or too many values"));
    }
    let Some(elements) = elements else {
        return Err(malformed("too many elements"));
    };
    if kind.answers() && elements > 1 && bytes_of(1).is_none_or(|bytes| bytes > ANSWER) {
        return Err(malformed("its answer would be too long"));
    }
    Ok(Request {
        memory,
        kind,
        places,
        elements,
        values,
    })
}

/// Why a request is not carried out.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) Verdict, pub(super) String);

/// The last byte of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Verdict {
    Done,
    Malformed,
    NoSuchMemory,
    WrongElement,
    OutOfBounds,
}

/// The answer to a request: consumed by [`open_answer`].
pub(super) fn answer(outcome: Result<Vec<u8>, Refusal>) -> Vec<u8> {
    match outcome {
        Ok(mut values) => {
            values.push(Verdict::Done as u8);
            values
        }
        Err(Refusal(verdict, text)) => {
            let mut bytes = text.into_bytes();
            bytes.truncate(TEXT);
            bytes.push(verdict as u8);
            bytes
        }
    }
}

/// The values of an answer, which must be `len` bytes.
///
/// # Errors
/// What the owner refused.
pub(super) fn open_answer(mut bytes: Vec<u8>, len: usize) -> Result<Vec<u8>, Error> {
    let verdict = bytes.pop();
    if verdict == Some(Verdict::Done as u8) && bytes.len() == len {
        return Ok(bytes);
    }
    let garbled = || Err(Error::new(ErrorKind::Ucx, "a garbled answer"));
    if bytes.is_empty() {
        // Nobody refuses without a word.
        return garbled();
    }
    let kind = match verdict {
        Some(byte) if byte == Verdict::NoSuchMemory as u8 => ErrorKind::Closed,
        Some(byte) if byte == Verdict::WrongElement as u8 => ErrorKind::WrongElement,
        Some(byte) if byte == Verdict::OutOfBounds as u8 => ErrorKind::OutOfBounds,
        Some(byte) if byte == Verdict::Malformed as u8 => ErrorKind::InvalidArgument,
        _ => return garbled(),
    };
    Err(Error::new(kind, String::from_utf8_lossy(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAME: MemoryName = MemoryName {
        id: 7,
        type_hash: 9,
        size: 4,
    };

    fn one(places: Places<'_>, work: Work<'_>) -> Vec<u8> {
        let pieces = pieces(places, usize::MAX);
        assert_eq!(pieces.len(), 1);
        encode(5, &NAME, work.kind(), &pieces[0], work.values())
    }

    #[test]
    fn requests_survive_the_journey() {
        let runs = [
            Run {
                start: 3,
                step: -1,
                count: 4,
            },
            Run {
                start: 100,
                step: 7,
                count: 2,
            },
        ];
        let values = [1; 24];
        for (work, places) in [
            (Work::Load, Places::Offsets(&[1, 2, u64::MAX])),
            (Work::Store(&values), Places::Runs(&runs)),
            (Work::Apply(AtomicOp::Xor, &values), Places::Runs(&runs)),
            (
                Work::Fetch(AtomicOp::Max, &values[..8]),
                Places::Offsets(&[6, 6]),
            ),
            (Work::CompareExchange(&values), Places::Offsets(&[1, 2, 3])),
        ] {
            let bytes = one(places, work);
            assert_eq!(ticket(&bytes), Some(5));
            let request = decode(&bytes).unwrap();
            assert_eq!((request.memory, request.kind), (NAME, work.kind()));
            assert_eq!(request.values, work.values());
            let arrived: Vec<Run> = request.places.runs().collect();
            match places {
                Places::Runs(runs) => assert_eq!(arrived, runs),
                Places::Offsets(offsets) => {
                    assert!(
                        arrived
                            .iter()
                            .map(|run| run.start)
                            .eq(offsets.iter().copied())
                    );
                }
            }
        }
    }

    #[test]
    fn answers_are_bounded() {
        let too_many = [Run {
            start: 0,
            step: 0,
            count: (ANSWER / 4) as u64 + 1,
        }];
        assert!(decode(&one(Places::Runs(&too_many), Work::Load)).is_err());
        let endless = [Run {
            start: 0,
            step: 0,
            count: u64::MAX,
        }; 2];
        let pieces = pieces_of_runs(&endless[..1], usize::MAX);
        let bytes = encode(5, &NAME, Kind::Load, &pieces[0], &[]);
        assert!(decode(&bytes).is_err());
        let mut bytes = encode(5, &NAME, Kind::Store, &pieces[0], &[]);
        assert!(decode(&bytes).is_err());
        bytes[24] = 2;
        bytes.extend_from_within(HEADER..);
        assert!(decode(&bytes).is_err(), "counts overflow");
    }

    #[test]
    fn answers_say_what_was_wrong() {
        let refused = answer(Err(Refusal(Verdict::OutOfBounds, "x".repeat(1000))));
        assert_eq!(refused.len(), TEXT + 1);
        assert_eq!(
            open_answer(refused, 8).unwrap_err().kind(),
            ErrorKind::OutOfBounds
        );
        assert_eq!(open_answer(answer(Ok(vec![1, 2])), 2).unwrap(), [1, 2]);
        assert!(open_answer(answer(Ok(vec![1, 2])), 3).is_err());
        assert!(open_answer(vec![77], 0).is_err());
        assert!(open_answer(vec![], 0).is_err());
    }

    proptest! {
        #[test]
        fn random_bytes_are_refused_or_consistent(mut bytes in prop::collection::vec(any::<u8>(), 0..300), tame in any::<bool>()) {
            if tame && bytes.len() >= HEADER {
                // Likely to get further.
                bytes[25..32].fill(0);
                bytes[33..36].fill(0);
                bytes[36] %= 5;
                bytes[37] %= 8;
                bytes[38] %= 2;
                bytes[39] = 0;
            }
            let _ = ticket(&bytes);
            if let Ok(request) = decode(&bytes) {
                let sum: u64 = request.places.runs().map(|run| run.count).sum();
                prop_assert_eq!(sum, request.elements as u64);
                let size = request.memory.size as usize;
                prop_assert_eq!(request.values.len(), request.elements * size * request.kind.values_each());
            }
        }

        /// Pieces name the same elements in the same order, and none is too large.
        #[test]
        fn pieces_are_the_whole(
            runs in prop::collection::vec((0_u64..1000, -5_i64..5, 0_u64..400), 0..50), most in 1_usize..500,
        ) {
            let runs: Vec<Run> = runs.into_iter().map(|(start, step, count)| Run { start: start + 5000, step, count }).collect();
            let all = |runs: &mut dyn Iterator<Item = Run>| -> Vec<i64> {
                runs.flat_map(|run| (0..run.count).map(move |k| run.start.cast_signed() + run.step * k.cast_signed())).collect()
            };
            let mut arrived = Vec::new();
            for piece in pieces(Places::Runs(&runs), most) {
                prop_assert!(piece.elements <= most && piece.elements > 0 && piece.bytes.len() <= PLACES);
                let values = vec![0; piece.elements * 4];
                let bytes = encode(1, &NAME, Kind::Store, &piece, &values);
                let request = decode(&bytes).unwrap();
                prop_assert_eq!(request.elements, piece.elements);
                arrived.extend(all(&mut request.places.runs()));
            }
            prop_assert_eq!(arrived, all(&mut runs.iter().copied()));
        }
    }
}
