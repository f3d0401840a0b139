//! Both ends of a control connection show that they know the job's secret, before anything else is parsed.
//!
//! ```text
//! rank                                            launcher
//!   hello: magic, version, rank, nonce        →
//!                                             ←   challenge: 0, nonce, HMAC("launcher", all of the above)
//!   proof: HMAC("rank", all of the above)     →
//!                                             ←   verdict: 0
//! ```
//! Every piece has a fixed length. A first byte other than 0 from the launcher is a [`Refusal`]. The HMAC is
//! HMAC-SHA256 under the secret over label, version, rank, job and both nonces; nonces are fresh, so that nothing can
//! be replayed, and the labels differ, so that nothing can be reflected.

use std::fmt;
use std::io::{Read, Write};

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::error::{Error, ErrorKind, Result};
use crate::wire::{self, VERSION};

const MAGIC: [u8; 8] = *b"pgas-ctl";
const NONCE: usize = 32;
const MAC: usize = 32;
pub(crate) const HELLO: usize = MAGIC.len() + 4 + 4 + NONCE;
pub(crate) const CHALLENGE: usize = 1 + NONCE + MAC;
pub(crate) const PROOF: usize = MAC;

type Nonce = [u8; NONCE];

/// The job's secret. Its `Debug` shows nothing.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A fresh one.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn random() -> Result<Self> {
        random().map(Self)
    }

    /// From its hexadecimal form.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        wire::from_hex(text).map(Self)
    }

    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(crate) fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    /// Its hexadecimal form, for [`wire::env::SECRET`].
    #[must_use]
    pub fn to_hex(&self) -> String {
        wire::to_hex(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// `N` bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::new(ErrorKind::Io, format!("no random bytes: {e}")))?;
    Ok(bytes)
}

/// Why the launcher turns a connection down during the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Refusal {
    Version = 1,
    Secret = 2,
    Rank = 3,
    Garbage = 4,
}

impl Refusal {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Version, Self::Secret, Self::Rank, Self::Garbage]
            .into_iter()
            .find(|&refusal| refusal as u8 == byte)
    }
}

/// What both HMACs cover, but for the label.
struct Transcript {
    rank: u32,
    job: [u8; 16],
    rank_nonce: Nonce,
    launcher_nonce: Nonce,
}

impl Transcript {
    fn mac(&self, secret: &Secret, label: &str) -> Hmac<Sha256> {
        // HMAC takes keys of any length: this cannot fail, and if it did, an empty key would match nothing.
        let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0)
            .unwrap_or_else(|_| Hmac::new(&Default::default()));
        mac.update(label.as_bytes());
        mac.update(&VERSION.to_le_bytes());
        mac.update(&self.rank.to_le_bytes());
        mac.update(&self.job);
        mac.update(&self.rank_nonce);
        mac.update(&self.launcher_nonce);
        mac
    }
}

const LAUNCHER: &str = "pgas launcher\0";
const RANK: &str = "pgas rank\0";

/// A rank's side; `then` follows the proof in the same write. The stream's own timeouts bound the wait.
pub(crate) fn introduce(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    job: [u8; 16],
    rank: u32,
    then: &[u8],
) -> Result<()> {
    let rank_nonce = random()?;
    let mut hello = Vec::with_capacity(HELLO);
    hello.extend_from_slice(&MAGIC);
    hello.extend_from_slice(&VERSION.to_le_bytes());
    hello.extend_from_slice(&rank.to_le_bytes());
    hello.extend_from_slice(&rank_nonce);
    let handshake =
        |e: std::io::Error| crate::client::stream_error("handshake with the launcher", &e);
    stream.write_all(&hello).map_err(handshake)?;

    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge).map_err(handshake)?;
    let (verdict, challenge) = (challenge[0], &challenge[1..]);
    let theirs = challenge
        .first_chunk()
        .map_or(0, |v| u32::from_le_bytes(*v));
    accepted(verdict, theirs)?;
    let (launcher_nonce, shown) = challenge.split_at(NONCE);
    let transcript = Transcript {
        rank,
        job,
        rank_nonce,
        launcher_nonce: launcher_nonce.try_into().unwrap_or([0; NONCE]),
    };
    if transcript
        .mac(secret, LAUNCHER)
        .verify_slice(shown)
        .is_err()
    {
        return Err(accepted(Refusal::Secret as u8, 0)
            .err()
            .unwrap_or_else(|| Error::new(ErrorKind::Refused, "secret does not match")));
    }
    let mut proof = transcript
        .mac(secret, RANK)
        .finalize()
        .into_bytes()
        .to_vec();
    proof.extend_from_slice(then);
    stream.write_all(&proof).map_err(handshake)?;

    let mut verdict = [0];
    stream.read_exact(&mut verdict).map_err(handshake)?;
    accepted(verdict[0], 0)
}

fn accepted(verdict: u8, version: u32) -> Result<()> {
    let reason = match Refusal::from_byte(verdict) {
        _ if verdict == 0 => return Ok(()),
        Some(Refusal::Version) => format!(
            "the launcher speaks version {version} of the protocol, this program {VERSION}: \
             build both from the same release"
        ),
        Some(Refusal::Secret) => {
            format!(
                "the launcher and {} disagree on the job's secret",
                wire::env::SECRET
            )
        }
        Some(Refusal::Rank) => "the job has no such rank".to_owned(),
        Some(Refusal::Garbage) | None => "the launcher did not understand the greeting".to_owned(),
    };
    Err(Error::new(
        ErrorKind::Refused,
        format!("launcher refused: {reason}"),
    ))
}

/// The launcher's side, without I/O: takes exactly the bytes it asks for.
pub(crate) struct Greeting {
    secret: Secret,
    job: [u8; 16],
    size: u32,
    challenged: Option<Transcript>,
}

/// What to do after some bytes of a [`Greeting`].
pub(crate) enum Step {
    /// Send the bytes; the proof is next.
    Challenge([u8; CHALLENGE]),
    /// Send the byte; the connection is this rank's.
    Welcome(u32, [u8; 1]),
    /// Send the bytes and close.
    Refuse(Refusal, Vec<u8>),
}

impl Greeting {
    pub(crate) fn new(secret: Secret, job: [u8; 16], size: u32) -> Self {
        Self {
            secret,
            job,
            size,
            challenged: None,
        }
    }

    /// How many bytes the next step takes.
    pub(crate) fn wants(&self) -> usize {
        if self.challenged.is_some() {
            PROOF
        } else {
            HELLO
        }
    }

    /// Goes on with the [`wants`](Self::wants) bytes at the start of `bytes`.
    pub(crate) fn step(&mut self, bytes: &[u8]) -> Result<Step> {
        match self.challenged.take() {
            None => self.challenge(bytes),
            Some(transcript) => {
                let proof = bytes.get(..PROOF).unwrap_or_default();
                if transcript
                    .mac(&self.secret, RANK)
                    .verify_slice(proof)
                    .is_err()
                {
                    return Ok(Step::Refuse(Refusal::Secret, vec![Refusal::Secret as u8]));
                }
                Ok(Step::Welcome(transcript.rank, [0]))
            }
        }
    }

    fn challenge(&mut self, hello: &[u8]) -> Result<Step> {
        let refuse = |refusal: Refusal| {
            let mut bytes = vec![0; CHALLENGE];
            bytes[0] = refusal as u8;
            bytes[1..5].copy_from_slice(&VERSION.to_le_bytes());
            Ok(Step::Refuse(refusal, bytes))
        };
        let parts = hello
            .strip_prefix(&MAGIC)
            .and_then(|rest| rest.split_first_chunk::<4>())
            .and_then(|(version, rest)| Some((version, rest.split_first_chunk::<4>()?)));
        let Some((version, (rank, nonce))) = parts else {
            return refuse(Refusal::Garbage);
        };
        if u32::from_le_bytes(*version) != VERSION {
            return refuse(Refusal::Version);
        }
        let rank = u32::from_le_bytes(*rank);
        if rank >= self.size {
            return refuse(Refusal::Rank);
        }
        let Some(rank_nonce) = nonce.first_chunk().copied() else {
            return refuse(Refusal::Garbage);
        };
        let launcher_nonce = random()?;
        let transcript = Transcript {
            rank,
            job: self.job,
            rank_nonce,
            launcher_nonce,
        };
        let mut bytes = [0; CHALLENGE];
        bytes[1..=NONCE].copy_from_slice(&launcher_nonce);
        let shown = transcript
            .mac(&self.secret, LAUNCHER)
            .finalize()
            .into_bytes();
        bytes[1 + NONCE..].copy_from_slice(&shown);
        self.challenged = Some(transcript);
        Ok(Step::Challenge(bytes))
    }
}
