//! The few functions of libpmix that are used, found at run time, and the structures they take.
//!
//! The layouts are those of PMIx 2 to 6; `tests` lets the C compiler compare them with the
//! installed headers. Structures that the library fills are freed as its own inline functions do:
//! with `free`.

#![expect(unsafe_code, reason = "the one file that calls into libpmix")]
#![allow(non_camel_case_types, reason = "names of the C header")]

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null;

pub(super) const SUCCESS: c_int = 0;
pub(super) const MAX_NSLEN: usize = 255;
const MAX_KEYLEN: usize = 511;
const RANK_WILDCARD: u32 = u32::MAX - 1;
const GLOBAL: u8 = 3;
const BOOL: u16 = 1;
const UINT32: u16 = 14;
const BYTE_OBJECT: u16 = 27;
const COLLECT_DATA: &CStr = c"pmix.collect";
const JOB_SIZE: &CStr = c"pmix.job.size";

#[repr(C)]
#[derive(Clone)]
struct pmix_proc_t {
    nspace: [c_char; MAX_NSLEN + 1],
    rank: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct pmix_byte_object_t {
    bytes: *mut c_char,
    size: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct pmix_envar_t {
    envar: *mut c_char,
    value: *mut c_char,
    separator: c_char,
}

/// The members that are used, and the largest.
#[repr(C)]
union pmix_value_data {
    flag: bool,
    uint32: u32,
    bo: pmix_byte_object_t,
    envar: pmix_envar_t,
}

#[repr(C)]
struct pmix_value_t {
    kind: u16,
    data: pmix_value_data,
}

#[repr(C)]
struct pmix_info_t {
    key: [c_char; MAX_KEYLEN + 1],
    flags: u32,
    value: pmix_value_t,
}

type Init = unsafe extern "C" fn(*mut pmix_proc_t, *const pmix_info_t, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const pmix_info_t, usize) -> c_int;
type Abort = unsafe extern "C" fn(c_int, *const c_char, *const pmix_proc_t, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *const pmix_value_t) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const pmix_proc_t, usize, *const pmix_info_t, usize) -> c_int;
type Get = unsafe extern "C" fn(
    *const pmix_proc_t,
    *const c_char,
    *const pmix_info_t,
    usize,
    *mut *mut pmix_value_t,
) -> c_int;
type GetVersion = unsafe extern "C" fn() -> *const c_char;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// The library's functions. It stays loaded, as its threads run until the process ends.
pub(in crate::world::bootstrap) struct Api {
    init: Init,
    finalize: Finalize,
    abort: Abort,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    error_string: ErrorString,
}

/// This process in its job, after `PMIx_Init`.
pub(super) struct Me(pmix_proc_t);

impl Me {
    pub(super) fn rank(&self) -> u32 {
        self.0.rank
    }

    fn with_rank(&self, rank: u32) -> pmix_proc_t {
        pmix_proc_t {
            rank,
            ..self.0.clone()
        }
    }
}

impl Api {
    /// Loads the library at `path`, or of that name. `Err(None)` if there is no such file or none
    /// that can be loaded; `Err(Some(_))` says why it cannot be used.
    pub(super) fn load(path: &Path) -> Result<Self, Option<String>> {
        // SAFETY: libpmix's constructors ask nothing of who loads it.
        let library = unsafe { Library::new(path) }.map_err(|_| None)?;
        // Never unloaded.
        let library: &'static Library = Box::leak(Box::new(library));
        let found = Self::find(library);
        found.map_err(|why| Some(format!("{}: {why}", path.display())))
    }

    fn find(library: &'static Library) -> Result<Self, String> {
        /// The function of this name.
        macro_rules! function {
            ($kind:ty, $name:literal) => {{
                // SAFETY: the type is that of the header, for all versions that `check` lets pass.
                let found = unsafe { library.get::<$kind>($name) };
                *found.map_err(|error| error.to_string())?
            }};
        }
        let version = function!(GetVersion, c"PMIx_Get_version");
        // SAFETY: may be called before PMIx_Init.
        let text = unsafe { version() };
        // SAFETY: the library's own constant string, or null.
        check(&unsafe { to_text(text) })?;
        Ok(Self {
            init: function!(Init, c"PMIx_Init"),
            finalize: function!(Finalize, c"PMIx_Finalize"),
            abort: function!(Abort, c"PMIx_Abort"),
            put: function!(Put, c"PMIx_Put"),
            commit: function!(Commit, c"PMIx_Commit"),
            fence: function!(Fence, c"PMIx_Fence"),
            get: function!(Get, c"PMIx_Get"),
            error_string: function!(ErrorString, c"PMIx_Error_string"),
        })
    }

    fn ok(&self, call: &str, status: c_int) -> Result<(), String> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: takes any number.
        let text = unsafe { (self.error_string)(status) };
        // SAFETY: the library's own string, or null.
        let text = unsafe { to_text(text) };
        Err(format!("{call} failed: {text} ({status})"))
    }

    pub(super) fn init(&self) -> Result<Me, String> {
        let mut me = pmix_proc_t {
            nspace: [0; MAX_NSLEN + 1],
            rank: 0,
        };
        // SAFETY: fills `me`; no infos.
        let status = unsafe { (self.init)(&raw mut me, null(), 0) };
        self.ok("PMIx_Init", status)?;
        Ok(Me(me))
    }

    /// Number of ranks of the job that `me` belongs to.
    pub(super) fn size(&self, me: &Me) -> Result<u32, String> {
        let all = me.with_rank(RANK_WILDCARD);
        self.read(&all, JOB_SIZE, |value| {
            if value.kind != UINT32 {
                return Err(format!("the job's size is of type {}", value.kind));
            }
            // SAFETY: the type says which member it is.
            Ok(unsafe { value.data.uint32 })
        })
    }

    /// Publishes `bytes` for the others' `fetch`, after the next `fence`.
    pub(super) fn publish(&self, key: &CStr, bytes: &[u8]) -> Result<(), String> {
        let value = pmix_value_t {
            kind: BYTE_OBJECT,
            data: pmix_value_data {
                bo: pmix_byte_object_t {
                    bytes: bytes.as_ptr().cast_mut().cast(),
                    size: bytes.len(),
                },
            },
        };
        // SAFETY: the library copies key and value, and writes to neither.
        let status = unsafe { (self.put)(GLOBAL, key.as_ptr(), &raw const value) };
        self.ok("PMIx_Put", status)?;
        // SAFETY: takes nothing.
        let status = unsafe { (self.commit)() };
        self.ok("PMIx_Commit", status)
    }

    /// Returns when all ranks of the job of `me` have called it.
    pub(super) fn fence(&self, me: &Me) -> Result<(), String> {
        let all = me.with_rank(RANK_WILDCARD);
        let mut key = [0; MAX_KEYLEN + 1];
        let name = COLLECT_DATA.to_bytes_with_nul();
        for (to, &from) in key.iter_mut().zip(name) {
            *to = c_char::from_ne_bytes([from]);
        }
        let collect = pmix_info_t {
            key,
            flags: 0,
            value: pmix_value_t {
                kind: BOOL,
                data: pmix_value_data { flag: true },
            },
        };
        // SAFETY: one process and one info, which the library only reads, until it returns.
        let status = unsafe { (self.fence)(&raw const all, 1, &raw const collect, 1) };
        self.ok("PMIx_Fence", status)
    }

    /// What `rank` has published as `key`.
    pub(super) fn fetch(&self, me: &Me, rank: u32, key: &CStr) -> Result<Vec<u8>, String> {
        self.read(&me.with_rank(rank), key, |value| {
            if value.kind != BYTE_OBJECT {
                return Err(format!("rank {rank}'s part is of type {}", value.kind));
            }
            // SAFETY: the type says which member it is.
            let object = unsafe { value.data.bo };
            if object.bytes.is_null() || object.size > ucxrun::wire::MAX_BLOB {
                return Err(format!("rank {rank}'s part has {} bytes", object.size));
            }
            // SAFETY: the library's bytes, as many as it says, until they are freed below.
            let bytes =
                unsafe { std::slice::from_raw_parts(object.bytes.cast::<u8>(), object.size) };
            let copy = bytes.to_vec();
            // SAFETY: allocated by the library with malloc, for us to free, and not used after.
            unsafe { libc::free(object.bytes.cast()) };
            Ok(copy)
        })
    }

    /// What `read` makes of a value, which is freed afterwards.
    fn read<T>(
        &self,
        of: &pmix_proc_t,
        key: &CStr,
        read: impl FnOnce(&pmix_value_t) -> Result<T, String>,
    ) -> Result<T, String> {
        let mut value: *mut pmix_value_t = std::ptr::null_mut();
        // SAFETY: a process, a key, no infos, and a place for the answer.
        let status = unsafe { (self.get)(of, key.as_ptr(), null(), 0, &raw mut value) };
        self.ok("PMIx_Get", status)?;
        // SAFETY: null, or a value that the library has allocated for us.
        let Some(found) = (unsafe { value.as_ref() }) else {
            return Err("PMIx_Get gave nothing".to_owned());
        };
        let result = read(found);
        // SAFETY: allocated by the library with malloc; `found` is not used any more.
        unsafe { libc::free(value.cast::<c_void>()) };
        result
    }

    pub(super) fn finalize(&self) -> Result<(), String> {
        // SAFETY: no infos.
        let status = unsafe { (self.finalize)(null(), 0) };
        self.ok("PMIx_Finalize", status)
    }

    /// Asks for the end of the whole job.
    pub(super) fn abort(&self, code: c_int, message: &str) -> Result<(), String> {
        let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
        // SAFETY: no processes means all; the message is only read.
        let status = unsafe { (self.abort)(code, message.as_ptr(), null(), 0) };
        self.ok("PMIx_Abort", status)
    }
}

/// # Safety
/// `text` is null or a C string.
unsafe fn to_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Refuses versions whose structures nobody has compared. `text` begins like `OpenPMIx 4.2.2`.
fn check(text: &str) -> Result<(), String> {
    let start = text.find(|c: char| c.is_ascii_digit());
    let number = start.map(|start| &text[start..]).unwrap_or_default();
    let major = number
        .split('.')
        .next()
        .and_then(|major| major.parse().ok());
    match major {
        Some(2..=6) => Ok(()),
        _ => Err(format!("its version is {text:?}, known are 2 to 6")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};
    use std::process::Command;

    #[test]
    fn versions_are_read() {
        for text in [
            "OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2)",
            "PMIx 3.1.5, repo x",
            "2.0",
        ] {
            check(text).unwrap();
        }
        for text in ["", "OpenPMIx", "OpenPMIx 1.2.5", "7.0.0", "OpenPMIx 44"] {
            check(text).unwrap_err();
        }
    }

    /// The installed headers are what the compiler says.
    #[test]
    #[ignore = "needs libpmix-dev: cargo xtask test --only engines"]
    fn layouts_are_those_of_the_header() {
        let ours = [
            ("sizeof(pmix_proc_t)", size_of::<pmix_proc_t>()),
            ("offsetof(pmix_proc_t, rank)", offset_of!(pmix_proc_t, rank)),
            ("sizeof(pmix_value_t)", size_of::<pmix_value_t>()),
            (
                "offsetof(pmix_value_t, data)",
                offset_of!(pmix_value_t, data),
            ),
            (
                "offsetof(pmix_byte_object_t, size)",
                offset_of!(pmix_byte_object_t, size),
            ),
            ("sizeof(pmix_info_t)", size_of::<pmix_info_t>()),
            (
                "offsetof(pmix_info_t, flags)",
                offset_of!(pmix_info_t, flags),
            ),
            (
                "offsetof(pmix_info_t, value)",
                offset_of!(pmix_info_t, value),
            ),
            ("sizeof(pmix_scope_t)", size_of_val(&GLOBAL)),
            ("sizeof(pmix_status_t)", size_of::<c_int>()),
            ("sizeof(pmix_data_type_t)", size_of_val(&UINT32)),
            ("PMIX_RANK_WILDCARD", RANK_WILDCARD as usize),
            ("PMIX_GLOBAL", usize::from(GLOBAL)),
            ("PMIX_BOOL", usize::from(BOOL)),
            ("PMIX_UINT32", usize::from(UINT32)),
            ("PMIX_BYTE_OBJECT", usize::from(BYTE_OBJECT)),
            ("PMIX_MAX_NSLEN", MAX_NSLEN),
            ("PMIX_MAX_KEYLEN", MAX_KEYLEN),
        ];
        let prints: String = ours
            .iter()
            .map(|(what, _)| format!("printf(\"%zu\\n\", (size_t)({what}));\n"))
            .collect();
        let source = format!(
            "#include <stdio.h>\n#include <stddef.h>\n#include <pmix.h>\n\
             int (*init)(pmix_proc_t *, pmix_info_t *, size_t) = PMIx_Init;\n\
             int (*put)(pmix_scope_t, const char *, pmix_value_t *) = PMIx_Put;\n\
             int (*fence)(const pmix_proc_t *, size_t, const pmix_info_t *, size_t) = PMIx_Fence;\n\
             int (*get)(const pmix_proc_t *, const char *, const pmix_info_t *, size_t, pmix_value_t **) = PMIx_Get;\n\
             int (*end)(const pmix_info_t *, size_t) = PMIx_Finalize;\n\
             int (*die)(int, const char *, pmix_proc_t *, size_t) = PMIx_Abort;\n\
             int main(void) {{\n{prints}puts({COLLECT:?}); puts({SIZE:?});\n\
             puts(PMIX_COLLECT_DATA); puts(PMIX_JOB_SIZE); return 0; }}\n",
            COLLECT = COLLECT_DATA.to_str().unwrap(),
            SIZE = JOB_SIZE.to_str().unwrap(),
        );
        let folder = std::env::temp_dir().join(format!("pgas-pmix-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (file, program) = (folder.join("layout.c"), folder.join("layout"));
        std::fs::write(&file, source).unwrap();
        let compiled = Command::new("cc")
            .args([
                "-I/usr/lib/x86_64-linux-gnu/pmix2/include",
                "-I/usr/include",
                "-w",
                "-o",
            ])
            .arg(&program)
            .arg(&file)
            .arg("-L/usr/lib/x86_64-linux-gnu/pmix2/lib")
            .arg("-lpmix")
            .output()
            .unwrap();
        let printed = Command::new(&program).output();
        std::fs::remove_dir_all(&folder).unwrap();
        let errors = String::from_utf8_lossy(&compiled.stderr).into_owned();
        assert!(compiled.status.success(), "libpmix-dev is needed: {errors}");
        let printed = String::from_utf8(printed.unwrap().stdout).unwrap();
        let mut lines = printed.lines();
        for (what, value) in ours {
            assert_eq!(lines.next().unwrap(), value.to_string(), "{what}");
        }
        let names: Vec<_> = lines.collect();
        assert_eq!(names[..2], names[2..]);
    }
}
