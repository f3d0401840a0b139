//! A loop that damages inputs of a kept corpus for a bounded time: no input may make a decoder panic or take long.
//!
//! An input that does is written to the corpus as `found-…`, where it stays as a test of its repair. How long:
//! `PGAS_FUZZ_SECONDS` for each target, 1 if it is not set.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longer inputs are cut.
const MOST: usize = 1 << 16;
/// One input takes less.
const SLOW: Duration = Duration::from_secs(2);

/// Runs `target` on the corpus in `folder`, on `seeds`, and on what becomes of them.
pub(super) fn fuzz(folder: &Path, seeds: Vec<Vec<u8>>, target: impl Fn(&[u8])) {
    let files = std::fs::read_dir(folder).unwrap().flatten();
    let mut inputs: Vec<Vec<u8>> = files
        .map(|file| std::fs::read(file.path()).unwrap())
        .collect();
    assert!(!inputs.is_empty(), "no corpus in {}", folder.display());
    inputs.extend(seeds);
    let seconds = std::env::var("PGAS_FUZZ_SECONDS");
    let seconds = seconds.map_or(1, |text| text.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(seconds);
    for input in &inputs {
        check(folder, input, &target);
    }
    // Other inputs at every run; one that fails is kept, so it need not be found again.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = now.unwrap().as_nanos().to_le_bytes();
    let mut random = Random(u64::from_le_bytes(*nanos.first_chunk().unwrap()) | 1);
    let mut runs = 0_u64;
    while Instant::now() < until {
        for _ in 0..64 {
            let mut input = inputs[random.below(inputs.len())].clone();
            for _ in 0..=random.below(6) {
                random.damage(&mut input, &inputs);
            }
            input.truncate(MOST);
            check(folder, &input, &target);
            runs += 1;
        }
    }
    println!(
        "{}: {} inputs kept, {runs} tried",
        folder.display(),
        inputs.len()
    );
}

fn check(folder: &Path, input: &[u8], target: &impl Fn(&[u8])) {
    let start = Instant::now();
    let panicked = catch_unwind(AssertUnwindSafe(|| target(input))).is_err();
    if panicked || start.elapsed() > SLOW {
        let sum = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let file = folder.join(format!("found-{sum:016x}"));
        std::fs::write(&file, input).unwrap();
        let what = if panicked { "a panic" } else { "too slow" };
        panic!("{what}: the input is kept in {}", file.display());
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap()
    }

    /// What decoders stumble over: lengths, ends, signs.
    fn byte(&mut self) -> u8 {
        let odd = [
            0, 1, 0x7f, 0x80, 0xfa, 0xfb, 0xfc, 0xfd, 0xff, b'\n', b':', b',',
        ];
        match self.below(2) {
            0 => odd[self.below(odd.len())],
            _ => self.next().to_le_bytes()[0],
        }
    }

    fn damage(&mut self, input: &mut Vec<u8>, others: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        let end = at + self.below(input.len() + 1 - at);
        match self.below(8) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.byte(),
            2 => input.insert(at, self.byte()),
            3 => drop(input.drain(at..end)),
            4 => input.truncate(at),
            5 => {
                let part = input[at..end].to_vec();
                input.splice(at..at, part);
            }
            6 => {
                let other = &others[self.below(others.len())];
                let from = self.below(other.len() + 1);
                input.splice(at..end, other[from..].iter().copied());
            }
            _ => {
                let number = [0, 1, 255, 65_535, 1 << 28, u32::MAX][self.below(6)];
                let end = input.len().min(at + 4);
                input.splice(at..end, number.to_le_bytes());
            }
        }
    }
}
