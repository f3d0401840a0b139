//! Damaged messages: their labels, their clocks, and the headers of those that go through an outbox.

use super::outbox::Header;
use super::receive::{Inside, Parts};
use super::{Envelope, LABEL, OUTSIDE, encode, label_of_elements, name_in, values_of};
use crate::fuzz::fuzz;
use crate::ucx::{Context, MemoryHandle};

/// Bytes of a clock of two ranks.
const CLOCK: usize = 16;

#[test]
fn messages() {
    let context = Context::builder().job(7).rank(1).build().unwrap();
    let memory = MemoryHandle::allocate::<u64>(&context, 100).unwrap();
    let header = Header::example(memory.pack().unwrap());
    let seed = |content: &[u8]| [content, &[3; CLOCK], &label_of_elements::<f64>()].concat();
    let seeds = vec![seed(&[1; 80]), seed(&encode(&header).unwrap()), seed(&[])];
    fuzz("message", seeds, |bytes| {
        for (tag, clock) in [(0, 0), (0, CLOCK), (OUTSIDE, 0), (OUTSIDE, CLOCK)] {
            let seen = Envelope::of(tag, bytes, LABEL + clock);
            let Ok(parts) = Parts::of(tag, bytes.to_vec(), clock) else {
                continue;
            };
            assert_eq!(parts.clock.len(), clock);
            assert!(name_in(&parts.label).len() <= 3 * LABEL);
            let len = match parts.inside {
                Inside::Content(bytes) => {
                    // Of any type, whatever the length.
                    assert_eq!(values_of::<u64>(&bytes).unwrap().len(), bytes.len() / 8);
                    let _ = values_of::<char>(&bytes);
                    bytes.len()
                }
                Inside::Header(header) => usize::try_from(header.len).unwrap(),
            };
            assert_eq!(seen.bytes, len);
        }
    });
}
