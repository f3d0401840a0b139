//! The problem's classes, with the ranks that the benchmark's specification gives for some keys, and
//! its random numbers.

use clap::ValueEnum;

/// Times that the keys are ranked.
pub const ITERATIONS: u32 = 10;

/// Sizes of the problem.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
#[value(rename_all = "UPPER")]
pub enum Class {
    S,
    W,
    A,
}

impl Class {
    /// How many keys there are.
    pub fn keys(self) -> usize {
        match self {
            Self::S => 1 << 16,
            Self::W => 1 << 20,
            Self::A => 1 << 23,
        }
    }

    /// Keys are less than this.
    pub fn max_key(self) -> u32 {
        match self {
            Self::S => 1 << 11,
            Self::W => 1 << 16,
            Self::A => 1 << 19,
        }
    }

    /// The places of the keys whose ranks are known.
    pub fn tested(self) -> [usize; 5] {
        match self {
            Self::S => [48_427, 17_148, 23_627, 62_548, 4_431],
            Self::W => [357_773, 934_767, 875_723, 898_999, 404_505],
            Self::A => [2_112_377, 662_041, 5_336_171, 3_642_833, 4_250_760],
        }
    }

    /// Their ranks in an iteration, which are counted from 1: each iteration changes two keys.
    pub fn ranks(self, iteration: u32) -> [i64; 5] {
        let k = i64::from(iteration);
        let (ranks, rising, by) = match self {
            Self::S => ([0, 18, 346, 64_917, 65_463], 3, k),
            Self::W => ([1_249, 11_698, 1_039_987, 1_043_896, 1_048_018], 2, k),
            Self::A => ([104, 17_523, 123_928, 8_288_932, 8_388_264], 3, k - 1),
        };
        let rise = match self {
            Self::W => k - 2,
            _ => by,
        };
        let mut ranks: [i64; 5] = ranks;
        ranks[..rising].iter_mut().for_each(|rank| *rank += rise);
        ranks[rising..].iter_mut().for_each(|rank| *rank -= by);
        ranks
    }
}

/// The generator of all NAS benchmarks: `x = a x mod 2^46`, as a fraction of 2^46.
pub struct Random {
    state: u64,
}

const MULTIPLIER: u64 = 5_u64.pow(13);
const SEED: u64 = 314_159_265;
const MASK: u64 = (1 << 46) - 1;

impl Random {
    /// After `drawn` numbers have been drawn.
    pub fn after(mut drawn: u64) -> Self {
        let (mut state, mut power) = (SEED, MULTIPLIER);
        while drawn > 0 {
            if drawn & 1 == 1 {
                state = state.wrapping_mul(power) & MASK;
            }
            power = power.wrapping_mul(power) & MASK;
            drawn >>= 1;
        }
        Self { state }
    }

    fn next(&mut self) -> f64 {
        self.state = self.state.wrapping_mul(MULTIPLIER) & MASK;
        self.state as f64 / (1_u64 << 46) as f64
    }

    /// A key: the mean of four numbers, as a fraction of `max_key`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rounds down what is not negative and less than `max_key`"
    )]
    pub fn key(&mut self, max_key: u32) -> u32 {
        let mut sum = self.next();
        sum += self.next();
        sum += self.next();
        sum += self.next();
        (f64::from(max_key / 4) * sum) as u32
    }
}
