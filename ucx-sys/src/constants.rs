// Flags and field masks, each of the type of the field or argument it is for.
// Nothing but the call of one macro: tests/abi.rs includes this file too, with another macro of that name.

constants! {
    // ucp_init_version: the release whose interface this crate declares
    c_uint {
        UCP_API_MAJOR = 1;
        UCP_API_MINOR = 12;
    }

    usize {
        UCP_ENTITY_NAME_MAX = 32;
        UCS_CPU_SETSIZE = 1024;
    }

    // ucs_thread_mode_t
    ucs_thread_mode_t {
        UCS_THREAD_MODE_SINGLE = 0;
        UCS_THREAD_MODE_SERIALIZED = 1;
        UCS_THREAD_MODE_MULTI = 2;
    }

    // ucs_memory_type_t. No UCS_MEMORY_TYPE_LAST or _UNKNOWN: their value moves with each type added
    ucs_memory_type_t {
        UCS_MEMORY_TYPE_HOST = 0;
        UCS_MEMORY_TYPE_CUDA = 1;
        UCS_MEMORY_TYPE_CUDA_MANAGED = 2;
        UCS_MEMORY_TYPE_ROCM = 3;
        UCS_MEMORY_TYPE_ROCM_MANAGED = 4;
    }

    // ucp_lib_attr_t::field_mask, ucp_params_t::field_mask and ::features
    u64 {
        UCP_LIB_ATTR_FIELD_MAX_THREAD_LEVEL = 1 << 0;

        UCP_PARAM_FIELD_FEATURES = 1 << 0;
        UCP_PARAM_FIELD_REQUEST_SIZE = 1 << 1;
        UCP_PARAM_FIELD_REQUEST_INIT = 1 << 2;
        UCP_PARAM_FIELD_REQUEST_CLEANUP = 1 << 3;
        UCP_PARAM_FIELD_TAG_SENDER_MASK = 1 << 4;
        UCP_PARAM_FIELD_MT_WORKERS_SHARED = 1 << 5;
        UCP_PARAM_FIELD_ESTIMATED_NUM_EPS = 1 << 6;
        UCP_PARAM_FIELD_ESTIMATED_NUM_PPN = 1 << 7;
        UCP_PARAM_FIELD_NAME = 1 << 8;

        UCP_FEATURE_TAG = 1 << 0;
        UCP_FEATURE_RMA = 1 << 1;
        UCP_FEATURE_AMO32 = 1 << 2;
        UCP_FEATURE_AMO64 = 1 << 3;
        UCP_FEATURE_WAKEUP = 1 << 4;
        UCP_FEATURE_STREAM = 1 << 5;
        UCP_FEATURE_AM = 1 << 6;

        UCP_ATTR_FIELD_REQUEST_SIZE = 1 << 0;
        UCP_ATTR_FIELD_THREAD_MODE = 1 << 1;
        UCP_ATTR_FIELD_MEMORY_TYPES = 1 << 2;
        UCP_ATTR_FIELD_NAME = 1 << 3;
    }

    // ucp_worker_params_t::field_mask and ::flags, ucp_worker_attr_t, ucp_worker_address_attr_t
    u64 {
        UCP_WORKER_PARAM_FIELD_THREAD_MODE = 1 << 0;
        UCP_WORKER_PARAM_FIELD_CPU_MASK = 1 << 1;
        UCP_WORKER_PARAM_FIELD_EVENTS = 1 << 2;
        UCP_WORKER_PARAM_FIELD_USER_DATA = 1 << 3;
        UCP_WORKER_PARAM_FIELD_EVENT_FD = 1 << 4;
        UCP_WORKER_PARAM_FIELD_FLAGS = 1 << 5;
        UCP_WORKER_PARAM_FIELD_NAME = 1 << 6;
        UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT = 1 << 7;
        UCP_WORKER_PARAM_FIELD_CLIENT_ID = 1 << 8;

        UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK = 1 << 0;

        UCP_WORKER_ATTR_FIELD_THREAD_MODE = 1 << 0;
        UCP_WORKER_ATTR_FIELD_ADDRESS = 1 << 1;
        UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS = 1 << 2;
        UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER = 1 << 3;
        UCP_WORKER_ATTR_FIELD_NAME = 1 << 4;
        UCP_WORKER_ATTR_FIELD_MAX_INFO_STRING = 1 << 5;

        UCP_WORKER_ADDRESS_ATTR_FIELD_UID = 1 << 0;
    }

    // ucp_worker_attr_t::address_flags
    u32 {
        UCP_WORKER_ADDRESS_FLAG_NET_ONLY = 1 << 0;
    }

    // ucp_worker_params_t::events
    c_uint {
        UCP_WAKEUP_RMA = 1 << 0;
        UCP_WAKEUP_AMO = 1 << 1;
        UCP_WAKEUP_TAG_SEND = 1 << 2;
        UCP_WAKEUP_TAG_RECV = 1 << 3;
        UCP_WAKEUP_TX = 1 << 10;
        UCP_WAKEUP_RX = 1 << 11;
        UCP_WAKEUP_EDGE = 1 << 16;
    }

    // ucp_ep_params_t::field_mask, ucp_ep_attr_t::field_mask
    u64 {
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS = 1 << 0;
        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE = 1 << 1;
        UCP_EP_PARAM_FIELD_ERR_HANDLER = 1 << 2;
        UCP_EP_PARAM_FIELD_USER_DATA = 1 << 3;
        UCP_EP_PARAM_FIELD_SOCK_ADDR = 1 << 4;
        UCP_EP_PARAM_FIELD_FLAGS = 1 << 5;
        UCP_EP_PARAM_FIELD_CONN_REQUEST = 1 << 6;
        UCP_EP_PARAM_FIELD_NAME = 1 << 7;

        UCP_EP_ATTR_FIELD_NAME = 1 << 0;
        UCP_EP_ATTR_FIELD_LOCAL_SOCKADDR = 1 << 1;
        UCP_EP_ATTR_FIELD_REMOTE_SOCKADDR = 1 << 2;
    }

    // ucp_ep_params_t::flags
    c_uint {
        UCP_EP_PARAMS_FLAGS_CLIENT_SERVER = 1 << 0;
        UCP_EP_PARAMS_FLAGS_NO_LOOPBACK = 1 << 1;
        UCP_EP_PARAMS_FLAGS_SEND_CLIENT_ID = 1 << 2;
    }

    // ucp_ep_params_t::err_mode
    ucp_err_handling_mode_t {
        UCP_ERR_HANDLING_MODE_NONE = 0;
        UCP_ERR_HANDLING_MODE_PEER = 1;
    }

    // ucp_request_param_t::flags of ucp_ep_close_nbx
    u32 {
        UCP_EP_CLOSE_FLAG_FORCE = 1 << 0;
    }

    // ucp_mem_map_params_t::field_mask, ucp_mem_attr_t::field_mask
    u64 {
        UCP_MEM_MAP_PARAM_FIELD_ADDRESS = 1 << 0;
        UCP_MEM_MAP_PARAM_FIELD_LENGTH = 1 << 1;
        UCP_MEM_MAP_PARAM_FIELD_FLAGS = 1 << 2;
        UCP_MEM_MAP_PARAM_FIELD_PROT = 1 << 3;
        UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE = 1 << 4;

        UCP_MEM_ATTR_FIELD_ADDRESS = 1 << 0;
        UCP_MEM_ATTR_FIELD_LENGTH = 1 << 1;
        UCP_MEM_ATTR_FIELD_MEM_TYPE = 1 << 2;
    }

    // ucp_mem_map_params_t::flags and ::prot
    c_uint {
        UCP_MEM_MAP_NONBLOCK = 1 << 0;
        UCP_MEM_MAP_ALLOCATE = 1 << 1;
        UCP_MEM_MAP_FIXED = 1 << 2;

        UCP_MEM_MAP_PROT_LOCAL_READ = 1 << 0;
        UCP_MEM_MAP_PROT_LOCAL_WRITE = 1 << 1;
        UCP_MEM_MAP_PROT_REMOTE_READ = 1 << 8;
        UCP_MEM_MAP_PROT_REMOTE_WRITE = 1 << 9;
    }

    // ucp_atomic_op_nbx
    ucp_atomic_op_t {
        UCP_ATOMIC_OP_ADD = 0;
        UCP_ATOMIC_OP_SWAP = 1;
        UCP_ATOMIC_OP_CSWAP = 2;
        UCP_ATOMIC_OP_AND = 3;
        UCP_ATOMIC_OP_OR = 4;
        UCP_ATOMIC_OP_XOR = 5;
    }

    // ucp_request_param_t::op_attr_mask
    u32 {
        UCP_OP_ATTR_FIELD_REQUEST = 1 << 0;
        UCP_OP_ATTR_FIELD_CALLBACK = 1 << 1;
        UCP_OP_ATTR_FIELD_USER_DATA = 1 << 2;
        UCP_OP_ATTR_FIELD_DATATYPE = 1 << 3;
        UCP_OP_ATTR_FIELD_FLAGS = 1 << 4;
        UCP_OP_ATTR_FIELD_REPLY_BUFFER = 1 << 5;
        UCP_OP_ATTR_FIELD_MEMORY_TYPE = 1 << 6;
        UCP_OP_ATTR_FIELD_RECV_INFO = 1 << 7;
        UCP_OP_ATTR_FLAG_NO_IMM_CMPL = 1 << 16;
        UCP_OP_ATTR_FLAG_FAST_CMPL = 1 << 17;
        UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL = 1 << 18;
        UCP_OP_ATTR_FLAG_MULTI_SEND = 1 << 19;
    }

    // ucp_request_attr_t::field_mask
    u64 {
        UCP_REQUEST_ATTR_FIELD_INFO_STRING = 1 << 0;
        UCP_REQUEST_ATTR_FIELD_INFO_STRING_SIZE = 1 << 1;
        UCP_REQUEST_ATTR_FIELD_STATUS = 1 << 2;
        UCP_REQUEST_ATTR_FIELD_MEM_TYPE = 1 << 3;
    }

    // ucp_datatype_t
    ucp_datatype_t {
        UCP_DATATYPE_CONTIG = 0;
        UCP_DATATYPE_STRIDED = 1;
        UCP_DATATYPE_IOV = 2;
        UCP_DATATYPE_GENERIC = 7;
        UCP_DATATYPE_SHIFT = 3;
        UCP_DATATYPE_CLASS_MASK = 7;
    }

    // active messages: ucp_am_handler_param_t::field_mask, ucp_am_recv_param_t::recv_attr
    u64 {
        UCP_AM_HANDLER_PARAM_FIELD_ID = 1 << 0;
        UCP_AM_HANDLER_PARAM_FIELD_FLAGS = 1 << 1;
        UCP_AM_HANDLER_PARAM_FIELD_CB = 1 << 2;
        UCP_AM_HANDLER_PARAM_FIELD_ARG = 1 << 3;

        UCP_AM_RECV_ATTR_FIELD_REPLY_EP = 1 << 0;
        UCP_AM_RECV_ATTR_FLAG_DATA = 1 << 16;
        UCP_AM_RECV_ATTR_FLAG_RNDV = 1 << 17;
    }

    // ucp_am_handler_param_t::flags, and ucp_request_param_t::flags of ucp_am_send_nbx
    u32 {
        UCP_AM_FLAG_WHOLE_MSG = 1 << 0;
        UCP_AM_FLAG_PERSISTENT_DATA = 1 << 1;

        UCP_AM_SEND_FLAG_REPLY = 1 << 0;
        UCP_AM_SEND_FLAG_EAGER = 1 << 1;
        UCP_AM_SEND_FLAG_RNDV = 1 << 2;
    }
}
