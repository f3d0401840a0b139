//! The library that the program is linked to does what the declarations say: one worker talks to itself.
#![expect(unsafe_code, reason = "calls C functions: that is what is tested")]

use std::ffi::{CStr, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use ucx_sys::*;

const AM_ID: c_uint = 7;

#[test]
fn the_loaded_library_is_usable() {
    check().unwrap();
    let (major, minor, release) = version();
    // SAFETY: needs nothing to be set up before.
    let string = unsafe { ucp_get_version_string() };
    // SAFETY: a static string.
    let string = unsafe { CStr::from_ptr(string) };
    let string = string.to_str().unwrap();
    assert!(
        string.starts_with(&format!("{major}.{minor}.{release}")),
        "{string}"
    );
    let (ucp, ucs) = library_paths();
    println!("UCX {string}: {} and {}", ucp.display(), ucs.display());
    assert!(ucp.to_string_lossy().contains("libucp") && ucp.exists());
    assert!(ucs.to_string_lossy().contains("libucs") && ucs.exists());
}

#[test]
fn every_status_has_a_text() {
    for status in ucs_status_t::ALL {
        // SAFETY: takes any status.
        let text = unsafe { ucs_status_string(*status) };
        // SAFETY: a static string.
        let text = unsafe { CStr::from_ptr(text) };
        assert!(!text.is_empty(), "{status:?}");
    }
}

/// What a completed operation's callback writes through `user_data`.
#[derive(Default)]
struct Completions {
    sent: AtomicU32,
    messages: AtomicU32,
}

extern "C" fn sent(_request: *mut c_void, status: ucs_status_t, user_data: *mut c_void) {
    assert_eq!(status, UCS_OK);
    // SAFETY: `user_data` is the Completions of the test, which outlives the worker.
    let completions = unsafe { &*user_data.cast::<Completions>() };
    completions.sent.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn received(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    _data: *mut c_void,
    length: usize,
    _param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    assert_eq!((header_length, length), (8, 3));
    // SAFETY: UCX passes a header of the length just checked.
    let header = unsafe { header.cast::<u64>().read_unaligned() };
    assert_eq!(header, 0x1122_3344_5566_7788);
    // SAFETY: `arg` is the Completions of the test, which outlives the worker.
    let completions = unsafe { &*arg.cast::<Completions>() };
    completions.messages.fetch_add(1, Ordering::Relaxed);
    UCS_OK
}

#[expect(
    clippy::multiple_unsafe_ops_per_block,
    clippy::undocumented_unsafe_blocks,
    reason = "a script of C calls in one thread, on objects that it made itself and destroys at its end"
)]
#[test]
fn a_worker_reaches_its_own_memory() {
    check().unwrap();
    let completions = Completions::default();
    let user_data: *mut c_void = (&raw const completions).cast_mut().cast();
    unsafe {
        let params = ucp_params_t {
            field_mask: UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
            features: UCP_FEATURE_RMA
                | UCP_FEATURE_AMO32
                | UCP_FEATURE_AMO64
                | UCP_FEATURE_TAG
                | UCP_FEATURE_AM,
            name: c"ucx-sys test".as_ptr(),
            ..ucp_params_t::ZEROED
        };
        let mut context = null_mut();
        ok(ucp_init_version(
            UCP_API_MAJOR,
            UCP_API_MINOR,
            &raw const params,
            null(),
            &raw mut context,
        ));
        let mut context_attr = ucp_context_attr_t {
            field_mask: UCP_ATTR_FIELD_MEMORY_TYPES
                | UCP_ATTR_FIELD_NAME
                | UCP_ATTR_FIELD_THREAD_MODE,
            ..ucp_context_attr_t::ZEROED
        };
        ok(ucp_context_query(context, &raw mut context_attr));
        assert_eq!(CStr::from_ptr(context_attr.name.as_ptr()), c"ucx-sys test");
        assert_ne!(context_attr.memory_types & (1 << UCS_MEMORY_TYPE_HOST), 0);

        let params = ucp_worker_params_t {
            field_mask: UCP_WORKER_PARAM_FIELD_THREAD_MODE,
            thread_mode: UCS_THREAD_MODE_SINGLE,
            ..ucp_worker_params_t::ZEROED
        };
        let mut worker = null_mut();
        ok(ucp_worker_create(
            context,
            &raw const params,
            &raw mut worker,
        ));
        let mut worker_attr = ucp_worker_attr_t {
            field_mask: UCP_WORKER_ATTR_FIELD_ADDRESS
                | UCP_WORKER_ATTR_FIELD_THREAD_MODE
                | UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER,
            ..ucp_worker_attr_t::ZEROED
        };
        ok(ucp_worker_query(worker, &raw mut worker_attr));
        assert_eq!(worker_attr.thread_mode, UCS_THREAD_MODE_SINGLE);
        assert!(worker_attr.address_length > 0 && worker_attr.max_am_header >= 8);

        let params = ucp_ep_params_t {
            field_mask: UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
            address: worker_attr.address,
            err_mode: UCP_ERR_HANDLING_MODE_NONE,
            ..ucp_ep_params_t::ZEROED
        };
        let mut ep = null_mut();
        ok(ucp_ep_create(worker, &raw const params, &raw mut ep));
        ucp_worker_release_address(worker, worker_attr.address);

        let params = ucp_mem_map_params_t {
            field_mask: UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
            length: 4096,
            flags: UCP_MEM_MAP_ALLOCATE,
            ..ucp_mem_map_params_t::ZEROED
        };
        let mut memh = null_mut();
        ok(ucp_mem_map(context, &raw const params, &raw mut memh));
        let mut mem_attr = ucp_mem_attr_t {
            field_mask: UCP_MEM_ATTR_FIELD_ADDRESS
                | UCP_MEM_ATTR_FIELD_LENGTH
                | UCP_MEM_ATTR_FIELD_MEM_TYPE,
            ..ucp_mem_attr_t::ZEROED
        };
        ok(ucp_mem_query(memh, &raw mut mem_attr));
        assert!(mem_attr.length >= 4096 && mem_attr.mem_type == UCS_MEMORY_TYPE_HOST);
        let address = mem_attr.address as u64;

        let (mut packed, mut packed_length) = (null_mut(), 0);
        ok(ucp_rkey_pack(
            context,
            memh,
            &raw mut packed,
            &raw mut packed_length,
        ));
        assert!(packed_length > 0);
        let mut rkey = null_mut();
        ok(ucp_ep_rkey_unpack(ep, packed, &raw mut rkey));
        ucp_rkey_buffer_release(packed);
        let mut direct = null_mut();
        let mapped = ucp_rkey_ptr(rkey, address, &raw mut direct);
        assert!(
            mapped == UCS_OK || mapped == UCS_ERR_UNREACHABLE,
            "{mapped:?}"
        );

        let plain = ucp_request_param_t::ZEROED;
        let told = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_CALLBACK
                | UCP_OP_ATTR_FIELD_USER_DATA
                | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
            cb: ucp_request_param_cb { send: Some(sent) },
            user_data,
            ..plain
        };

        let value = 41_u64;
        let put = ucp_put_nbx(
            ep,
            (&raw const value).cast(),
            8,
            address,
            rkey,
            &raw const told,
        );
        // Asked not to complete at once, a put has a callback to run; a flush may all the same.
        assert!(UCS_PTR_IS_PTR(put), "{:?}", UCS_PTR_STATUS(put));
        finish(worker, put);
        assert_eq!(completions.sent.load(Ordering::Relaxed), 1);
        finish(worker, ucp_ep_flush_nbx(ep, &raw const plain));
        if mapped == UCS_OK {
            assert_eq!(direct.cast::<u64>().read_volatile(), 41);
        }

        let mut old = 0_u64;
        let fetch = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER,
            datatype: ucp_dt_make_contig(8),
            reply_buffer: (&raw mut old).cast(),
            ..plain
        };
        let one = 1_u64;
        let added = ucp_atomic_op_nbx(
            ep,
            UCP_ATOMIC_OP_ADD,
            (&raw const one).cast(),
            1,
            address,
            rkey,
            &raw const fetch,
        );
        finish(worker, added);
        assert_eq!(old, 41);

        let mut read = 0_u64;
        finish(
            worker,
            ucp_get_nbx(
                ep,
                (&raw mut read).cast(),
                8,
                address,
                rkey,
                &raw const plain,
            ),
        );
        assert_eq!(read, 42);

        let handler = ucp_am_handler_param_t {
            field_mask: UCP_AM_HANDLER_PARAM_FIELD_ID
                | UCP_AM_HANDLER_PARAM_FIELD_CB
                | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            id: AM_ID,
            cb: Some(received),
            arg: user_data,
            ..ucp_am_handler_param_t::ZEROED
        };
        ok(ucp_worker_set_am_recv_handler(worker, &raw const handler));
        let header = 0x1122_3344_5566_7788_u64;
        let send = ucp_am_send_nbx(
            ep,
            AM_ID,
            (&raw const header).cast(),
            8,
            c"abc".as_ptr().cast(),
            3,
            &raw const plain,
        );
        finish(worker, send);
        wait_until(worker, || completions.messages.load(Ordering::Relaxed) == 1);

        let text = *b"tagged";
        finish(
            worker,
            ucp_tag_send_nbx(ep, text.as_ptr().cast(), 6, 5, &raw const plain),
        );
        let mut info = ucp_tag_recv_info_t::ZEROED;
        let mut message = null_mut();
        wait_until(worker, || {
            message = ucp_tag_probe_nb(worker, 5, u64::MAX, 1, &raw mut info);
            !message.is_null()
        });
        assert_eq!((info.sender_tag, info.length), (5, 6));
        let mut arrived = [0_u8; 6];
        finish(
            worker,
            ucp_tag_msg_recv_nbx(
                worker,
                arrived.as_mut_ptr().cast(),
                6,
                message,
                &raw const plain,
            ),
        );
        assert_eq!(arrived, text);

        finish(worker, ucp_worker_flush_nbx(worker, &raw const plain));
        ucp_rkey_destroy(rkey);
        // UCP_EP_CLOSE_FLAG_FORCE would be refused: it is for endpoints with peer error handling.
        finish(worker, ucp_ep_close_nbx(ep, &raw const plain));
        ok(ucp_mem_unmap(context, memh));
        ucp_worker_destroy(worker);
        ucp_cleanup(context);
    }
}

#[track_caller]
fn ok(status: ucs_status_t) {
    assert_eq!(status, UCS_OK);
}

/// Waits until the operation that returned `pointer` is complete.
#[track_caller]
fn finish(worker: ucp_worker_h, pointer: ucs_status_ptr_t) {
    if UCS_PTR_IS_PTR(pointer) {
        // SAFETY: it is a request that nobody has freed yet.
        wait_until(
            worker,
            || unsafe { ucp_request_check_status(pointer) } != UCS_INPROGRESS,
        );
        // SAFETY: as above.
        ok(unsafe { ucp_request_check_status(pointer) });
        // SAFETY: as above, and it is not used again.
        unsafe { ucp_request_free(pointer) };
    } else {
        ok(UCS_PTR_STATUS(pointer));
    }
}

#[track_caller]
fn wait_until(worker: ucp_worker_h, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "not complete after 20 s");
        // SAFETY: the worker is alive and belongs to this thread.
        if unsafe { ucp_worker_progress(worker) } == 0 {
            std::thread::yield_now();
        }
    }
}
