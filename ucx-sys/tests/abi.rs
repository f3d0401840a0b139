//! Holds our declarations against the installed UCX headers, with the C compiler as the judge.
//!
//! One C program redeclares every function and callback type as we have it, which the compiler refuses if
//! the header says otherwise, and prints the size and offset of every field and the value of every
//! constant, which are compared here. `ABI_HEADERS=/path/to/include` compares with other headers, `CC`
//! names another compiler.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::mem::{align_of, offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;
use ucx_sys::*;

/// Lists what the library's macro of this name defines.
macro_rules! constants {
    ($($type:ty { $($name:ident = $value:expr;)* })*) => {
        fn constants() -> BTreeMap<&'static str, i128> {
            BTreeMap::from([$($((stringify!($name), ucx_sys::$name as i128),)*)*])
        }
    };
}
include!("../src/constants.rs");

const TYPES: &str = include_str!("../src/types.rs");
const FUNCTIONS: &str = include_str!("../src/functions.rs");

struct Layout {
    name: &'static str,
    size: usize,
    align: usize,
    /// Field, offset, size.
    fields: Vec<(&'static str, usize, usize)>,
}

const fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// The layouts of structures. A field that is left out, or is not there, does not compile.
macro_rules! layouts {
    ($($name:ident { $($field:ident)* })*) => {
        vec![$({
            let _every_field_is_listed = |value: $name| {
                let $name { $($field: _),* } = value;
            };
            Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: vec![$((
                    stringify!($field),
                    offset_of!($name, $field),
                    size_of_field(|value: &$name| &value.$field),
                )),*],
            }
        }),*]
    };
}

fn layouts() -> Vec<Layout> {
    layouts! {
        ucs_cpu_set_t { ucs_bits }
        ucs_sock_addr_t { addr addrlen }
        ucp_lib_attr_t { field_mask max_thread_level }
        ucp_params_t {
            field_mask features request_size request_init request_cleanup tag_sender_mask
            mt_workers_shared estimated_num_eps estimated_num_ppn name
        }
        ucp_context_attr_t { field_mask request_size thread_mode memory_types name }
        ucp_worker_params_t {
            field_mask thread_mode cpu_mask events user_data event_fd flags name am_alignment client_id
        }
        ucp_worker_attr_t {
            field_mask thread_mode address_flags address address_length max_am_header name
            max_debug_string
        }
        ucp_worker_address_attr_t { field_mask worker_uid }
        ucp_err_handler_t { cb arg }
        ucp_ep_params_t {
            field_mask address err_mode err_handler user_data flags sockaddr conn_request name
        }
        ucp_ep_attr_t { field_mask name local_sockaddr remote_sockaddr }
        ucp_mem_map_params_t { field_mask address length flags prot memory_type }
        ucp_mem_attr_t { field_mask address length mem_type }
        ucp_tag_recv_info_t { sender_tag length }
        ucp_request_param_t {
            op_attr_mask flags request cb datatype user_data reply_buffer memory_type recv_info
        }
        ucp_request_attr_t { field_mask debug_string debug_string_size status mem_type }
        ucp_dt_iov_t { buffer length }
        ucp_am_handler_param_t { field_mask id flags cb arg }
        ucp_am_recv_param_t { recv_attr reply_ep }
    }
}

/// Members of the two unions, as the C program reaches them. All of them start where the union does.
const UNION_MEMBERS: [(&str, usize); 6] = [
    ("cb.send", offset_of!(ucp_request_param_t, cb)),
    ("cb.recv", offset_of!(ucp_request_param_t, cb)),
    ("cb.recv_stream", offset_of!(ucp_request_param_t, cb)),
    ("cb.recv_am", offset_of!(ucp_request_param_t, cb)),
    (
        "recv_info.length",
        offset_of!(ucp_request_param_t, recv_info),
    ),
    (
        "recv_info.tag_info",
        offset_of!(ucp_request_param_t, recv_info),
    ),
];

#[test]
fn every_structure_is_compared() {
    let declared: BTreeSet<&str> = TYPES
        .split("pub struct ")
        .skip(1)
        .map(|rest| rest.split([' ', '{']).next().unwrap())
        .filter(|name| *name != "$name")
        .collect();
    let compared: BTreeSet<&str> = layouts().iter().map(|layout| layout.name).collect();
    assert_eq!(declared, compared);
}

#[test]
fn declarations_agree_with_the_installed_headers() {
    let include = headers();
    let printed = compile_and_run(&c_program(), &include);
    let mut c: BTreeMap<&str, i128> = printed
        .lines()
        .map(|line| {
            let (what, number) = line.rsplit_once(' ').expect("'what number' on each line");
            (what, number.parse().expect("a number"))
        })
        .collect();
    let mut wrong = String::new();
    let mut compared = 0;
    let mut compare = |what: &str, ours: i128, tail_may_grow: bool| {
        compared += 1;
        match c.remove(what) {
            Some(theirs) if theirs == ours || (tail_may_grow && theirs > ours) => {}
            theirs => writeln!(wrong, "{what}: {ours} here, {theirs:?} in C").unwrap(),
        }
    };

    for Layout {
        name,
        size,
        align,
        fields,
    } in layouts()
    {
        compare(&format!("sizeof {name}"), size as i128, true);
        compare(&format!("alignof {name}"), align as i128, false);
        for (field, offset, size) in fields {
            compare(&format!("offsetof {name}.{field}"), offset as i128, false);
            compare(&format!("sizeof {name}.{field}"), size as i128, false);
        }
    }
    for (member, offset) in UNION_MEMBERS {
        compare(
            &format!("offsetof ucp_request_param_t.{member}"),
            offset as i128,
            false,
        );
    }
    for (name, value) in constants() {
        // The headers' own release: theirs may be newer.
        compare(name, value, name == "UCP_API_MINOR");
    }
    for status in ucs_status_t::ALL {
        compare(status.name().unwrap(), status.0.into(), false);
    }
    compare("contig", ucp_dt_make_contig(24).into(), false);
    compare("iov", ucp_dt_make_iov().into(), false);
    for number in -101_isize..=1 {
        let pointer: ucs_status_ptr_t = std::ptr::without_provenance_mut(number.cast_unsigned());
        compare(
            &format!("is_err {number}"),
            UCS_PTR_IS_ERR(pointer).into(),
            false,
        );
        compare(
            &format!("is_ptr {number}"),
            UCS_PTR_IS_PTR(pointer).into(),
            false,
        );
        compare(
            &format!("status {number}"),
            UCS_PTR_STATUS(pointer).0.into(),
            false,
        );
    }

    assert!(
        wrong.is_empty(),
        "compared with {}:\n{wrong}",
        include.display()
    );
    assert!(c.is_empty(), "printed by C and not compared: {c:?}");
    assert!(compared > 500, "only {compared} facts compared");
}

/// Declares all over again what the header declares, and prints what the compiler makes of the header.
fn c_program() -> String {
    let mut c = String::from(
        "#include <ucp/api/ucp.h>\n#include <ucs/type/status.h>\n#include <stddef.h>\n#include <stdint.h>\n\
         #include <stdio.h>\n\
         _Static_assert(sizeof(ucs_status_t) == 1 && (ucs_status_t)-1 < 0, \"status\");\n",
    );
    for (name, aliased) in aliases() {
        if aliased == "c_uint" {
            writeln!(
                c,
                "_Static_assert(sizeof({name}) == sizeof(unsigned) && ({name})-1 > 0, \"{name}\");"
            )
        } else {
            writeln!(c, "typedef {};", c_declaration(&aliased, &name))
        }
        .unwrap();
    }
    for (name, signature) in functions() {
        writeln!(c, "{};", c_prototype(&signature, &name)).unwrap();
    }
    c += "int main(void) {\n";
    let mut print = |what: &str, value: &str| {
        writeln!(c, "    printf(\"{what} %lld\\n\", (long long)({value}));").unwrap();
    };
    for Layout { name, fields, .. } in layouts() {
        print(&format!("sizeof {name}"), &format!("sizeof({name})"));
        print(&format!("alignof {name}"), &format!("_Alignof({name})"));
        for (field, ..) in fields {
            print(
                &format!("offsetof {name}.{field}"),
                &format!("offsetof({name}, {field})"),
            );
            print(
                &format!("sizeof {name}.{field}"),
                &format!("sizeof((({name}*)0)->{field})"),
            );
        }
    }
    for (member, _) in UNION_MEMBERS {
        print(
            &format!("offsetof ucp_request_param_t.{member}"),
            &format!("offsetof(ucp_request_param_t, {member})"),
        );
    }
    for name in constants().keys() {
        print(name, name);
    }
    for name in ucs_status_t::ALL
        .iter()
        .map(|status| status.name().unwrap())
    {
        print(name, name);
    }
    print("contig", "ucp_dt_make_contig(24)");
    print("iov", "ucp_dt_make_iov()");
    for number in -101..=1 {
        let pointer = format!("((void*)(intptr_t){number})");
        print(
            &format!("is_err {number}"),
            &format!("UCS_PTR_IS_ERR({pointer})"),
        );
        print(
            &format!("is_ptr {number}"),
            &format!("UCS_PTR_IS_PTR({pointer})"),
        );
        print(
            &format!("status {number}"),
            &format!("UCS_PTR_STATUS({pointer})"),
        );
    }
    c + "    return 0;\n}\n"
}

/// Name and right-hand side of each type alias. Those of a structure, or of none of C's types, have no `=`.
fn aliases() -> Vec<(String, String)> {
    let found: Vec<_> = statements(TYPES, "pub type ")
        .map(|statement| {
            let (name, aliased) = statement.split_once(" = ").expect("an alias has a =");
            (name.to_owned(), aliased.to_owned())
        })
        .collect();
    assert!(found.len() > 20, "only {} aliases found", found.len());
    found
}

/// Name and `(arguments) -> result` of each function.
fn functions() -> Vec<(String, String)> {
    let found: Vec<_> = statements(FUNCTIONS, "pub fn ")
        .map(|statement| {
            let (name, _) = statement.split_once('(').expect("a function has arguments");
            (name.to_owned(), statement[name.len()..].to_owned())
        })
        .collect();
    assert!(found.len() > 50, "only {} functions found", found.len());
    found
}

/// What follows `start`, up to its semicolon, on one line.
fn statements(source: &str, start: &str) -> impl Iterator<Item = String> {
    source.split(start).skip(1).map(|rest| {
        let (statement, _) = rest.split_once(';').expect("a statement ends");
        let words: Vec<&str> = statement.split_whitespace().collect();
        words
            .join(" ")
            .replace("( ", "(")
            .replace("< ", "<")
            .replace(", )", ")")
            .replace(", >", ">")
    })
}

/// `name` declared in C with the Rust type `rust`.
fn c_declaration(rust: &str, name: &str) -> String {
    match rust
        .strip_prefix("Option<unsafe extern \"C\" fn")
        .and_then(|rest| rest.strip_suffix('>'))
    {
        Some(signature) => c_prototype(signature, &format!("(*{name})")),
        None => format!("{} {name}", c_type(rust)),
    }
}

/// `name` declared in C as a function with the Rust signature `(a: T, b: U) -> V`.
fn c_prototype(signature: &str, name: &str) -> String {
    let (arguments, result) = signature.split_once(')').expect("arguments end");
    let arguments: Vec<String> = arguments
        .trim_start_matches('(')
        .split(", ")
        .filter(|argument| !argument.is_empty())
        .map(|argument| {
            let (_, rust) = argument.split_once(": ").expect("an argument has a type");
            c_type(rust.trim_end_matches(','))
        })
        .collect();
    let arguments = if arguments.is_empty() {
        "void".to_owned()
    } else {
        arguments.join(", ")
    };
    let result = result
        .trim()
        .strip_prefix("-> ")
        .map_or("void".to_owned(), c_type);
    format!("{result} {name}({arguments})")
}

fn c_type(rust: &str) -> String {
    if let Some(target) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type(target));
    }
    if let Some(target) = rust.strip_prefix("*const ") {
        return format!("{} const *", c_type(target));
    }
    match rust {
        "c_void" => "void",
        "c_char" => "char",
        "c_int" => "int",
        "c_uint" => "unsigned",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        // Names that end otherwise are those of structures: C wants the word.
        name if name == "FILE" || name.ends_with("_t") || name.ends_with("_h") => name,
        tag => return format!("struct {tag}"),
    }
    .to_owned()
}

fn headers() -> PathBuf {
    let include =
        env::var_os("ABI_HEADERS").unwrap_or_else(|| OsString::from(env!("INCLUDE_OF_UCX")));
    let include = PathBuf::from(include);
    assert!(
        include.join("ucp/api/ucp.h").exists(),
        "no UCX headers in {}: install them (libucx-dev, ucx-devel) or name their folder in ABI_HEADERS",
        include.display()
    );
    include
}

fn compile_and_run(source: &str, include: &Path) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (folder.join("abi.c"), folder.join("abi"));
    fs::write(&file, source).unwrap();
    let compiler = env::var_os("CC").unwrap_or_else(|| OsString::from("cc"));
    let compiled = Command::new(&compiler)
        .args(["-std=gnu11", "-Wall", "-Wno-deprecated-declarations", "-I"])
        .arg(include)
        .arg("-o")
        .args([&program, &file])
        .output()
        .unwrap_or_else(|error| panic!("a C compiler is needed: {}: {error}", compiler.display()));
    assert!(
        compiled.status.success(),
        "the headers in {} disagree with our declarations:\n{}",
        include.display(),
        String::from_utf8_lossy(&compiled.stderr)
    );
    let ran = Command::new(&program)
        .output()
        .expect("the compiled program runs");
    assert!(
        ran.status.success(),
        "{}: {}",
        program.display(),
        ran.status
    );
    String::from_utf8(ran.stdout).unwrap()
}
