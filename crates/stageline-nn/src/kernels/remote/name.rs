//! The names that clients use to request this crate's operations from a server on another host.

/// Name of the operation that asks a server for its version and for a device's kernels.
pub const HELLO: &str = "stageline/hello";
/// Name of the operation that asks a server for the random numbers that identify its process. A restarted server draws
/// new ones, so that a client notices the restart.
pub const PROCESS: &str = "stageline/process";
/// Name of the operation that sends a server the ids of a training run's other servers. The server then accepts tensors
/// from them, and replies with the number of valid ids.
pub const PEERS: &str = "stageline/peers";
/// Name of the operation that announces a session (a client's queue of requests to a device) to the server. A session
/// must be announced before it gives or takes a tensor ([`GIVE`], [`TAKE`]). The server replies with the number 1.
pub const JOIN: &str = "stageline/join";
/// Name of the operation that hands a session's tensor over to another session of the same program on the same server.
pub const GIVE: &str = "stageline/give";
/// Name of the operation that receives a tensor handed over by another session of the same program on the same server.
pub const TAKE: &str = "stageline/take";
pub(crate) const GELU: &str = "stageline/gelu";
pub(crate) const GELU_TO_INPUT: &str = "stageline/gelu_to_input";
pub(crate) const SWIGLU: &str = "stageline/swiglu";
pub(crate) const SWIGLU_TO_INPUTS: &str = "stageline/swiglu_to_inputs";
pub(crate) const JOINED: &str = "stageline/joined";
pub(crate) const JOIN_TO_PARTS: &str = "stageline/join_to_parts";
pub(crate) const LAYER_NORM: &str = "stageline/layer_norm";
pub(crate) const LAYER_NORM_TO_INPUT: &str = "stageline/layer_norm_to_input";
pub(crate) const LAYER_NORM_TO_PARAMETERS: &str = "stageline/layer_norm_to_parameters";
pub(crate) const CAUSAL_ATTENTION: &str = "stageline/causal_attention";
pub(crate) const CAUSAL_ATTENTION_TO_INPUT: &str = "stageline/causal_attention_to_input";
pub(crate) const CROSS_ENTROPY: &str = "stageline/cross_entropy";
pub(crate) const CROSS_ENTROPY_TO_LOGITS: &str = "stageline/cross_entropy_to_logits";
pub(crate) const SUM_OF_SQUARES: &str = "stageline/sum_of_squares";
pub(crate) const PRODUCT: &str = "stageline/product";
pub(crate) const TO_INPUT: &str = "stageline/to_input";
pub(crate) const TO_WEIGHT: &str = "stageline/to_weight";
pub(crate) const TO_BIAS: &str = "stageline/to_bias";
pub(crate) const TO_TABLE: &str = "stageline/to_table";
