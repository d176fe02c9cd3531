//! The keys and values of earlier positions, which the blocks of a model keep while a text is generated
//! ([`KeyValueCache`]).

use std::sync::Arc;

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Int, Tensor};
use parking_lot::Mutex;
use stageline::nn::{AttentionHeads, causal_attention, causal_attention_within};

/// A switch that turns a model's key-value cache on while a text is generated. All blocks of the model share it.
///
/// While the switch is off, blocks attend within each sample, as in training. While it is on, every input continues the
/// text of the input before: a block attends to the keys and values that it has kept from earlier inputs, and keeps
/// those of the new one. The blocks of a pipeline read the switch from their own threads, so it must not change during
/// an inference.
#[derive(Clone, Debug, Default)]
pub struct KeyValueCache(Arc<Mutex<Generated>>);

/// The state of a model's key-value cache during the generation of a text, which all blocks of the model share.
#[derive(Debug, Default)]
struct Generated {
    /// The number of tokens of the generated text that the model's blocks have processed so far, prompt included;
    /// `None` while the key-value cache is off.
    position: Option<usize>,
    /// The number of times that a model's key-value cache was switched on, which is once for each generated text. If
    /// the number has changed, a block's kept keys and values belong to an earlier text.
    text: u64,
}

/// The key-value cache of one transformer block. It keeps the attention keys and values of earlier inputs while the
/// cache of the whole model is on.
#[derive(Clone, Debug)]
pub struct BlockCache {
    model: KeyValueCache,
    kept: Arc<Mutex<Option<Kept>>>,
}

/// The attention keys and values that one transformer block has kept of all earlier positions of one text.
#[derive(Debug)]
struct Kept {
    text: u64,
    /// The keys that a block has kept of all earlier positions of a text, `[batch, positions, key-value heads x head
    /// size]`. If the model has a rotary embedding, the keys are stored rotated.
    keys: Tensor<3>,
    values: Tensor<3>,
}

impl KeyValueCache {
    /// Switches a model's key-value cache on for a new text and returns true. Does nothing and returns false if the
    /// cache is already on for another text.
    pub(crate) fn begin(&self) -> bool {
        let mut generated = self.0.lock();
        if generated.position.is_some() {
            return false;
        }
        generated.position = Some(0);
        generated.text += 1;
        true
    }

    /// Advances the position of a model's key-value cache in the text by `count` tokens, after an inference on that
    /// many tokens. Does nothing while the cache is off.
    pub(crate) fn advance(&self, count: usize) {
        let mut generated = self.0.lock();
        generated.position = generated.position.map(|position| position + count);
    }

    /// Switches a model's key-value cache off. A block frees its kept keys and values in its next forward.
    pub(crate) fn end(&self) {
        self.0.lock().position = None;
    }

    /// Returns the position in the generated text of the first token of the model's next input, counted from 0; returns
    /// 0 while the key-value cache is off.
    pub(crate) fn position(&self) -> usize {
        self.0.lock().position.unwrap_or(0)
    }

    /// Returns a new, empty key-value cache for one block. The block's cache is on or off together with the cache of
    /// the whole model.
    pub(crate) fn block(&self) -> BlockCache {
        BlockCache { model: self.clone(), kept: Arc::default() }
    }
}

impl BlockCache {
    /// Returns the position in the generated text of the first token of the block's next input, counted from 0; returns
    /// 0 while the key-value cache is off.
    pub(crate) fn position(&self) -> usize {
        self.model.position()
    }

    /// Computes the causal self-attention of a transformer block. The input `[batch, length, columns]` has the queries,
    /// keys and values of all heads side by side; the output is `[batch, length, query heads x head size]`. If `starts`
    /// is given, it has the position at which each token's document begins, and queries attend within their documents
    /// only. While the key-value cache is on, queries also attend to the kept keys and values of earlier inputs, and
    /// the new keys and values are kept.
    ///
    /// # Panics
    /// Panics if `starts` are given while the cache is on, because a text that is generated is one document.
    pub(crate) fn attend(
        &self,
        query_key_value: Tensor<3>,
        heads: AttentionHeads,
        starts: Option<Tensor<2, Int>>,
    ) -> Tensor<3> {
        let (position, text) = {
            let generated = self.model.0.lock();
            (generated.position, generated.text)
        };
        let Some(position) = position else {
            self.kept.lock().take();
            return match starts {
                Some(starts) => causal_attention_within(query_key_value, heads, starts),
                None => causal_attention(query_key_value, heads),
            };
        };
        assert!(
            starts.is_none(),
            "a text that is generated is one document; infer with documents after the generation"
        );
        let size = query_key_value.dims()[2] / (heads.query + 2 * heads.key_value);
        let [of_queries, of_keys] = [heads.query, heads.key_value].map(|heads| heads * size);
        let part = |start: usize, count: usize| query_key_value.clone().slice_dim(2, start..start + count);
        let (keys, values) = (part(of_queries, of_keys), part(of_queries + of_keys, of_keys));
        let mut kept = self.kept.lock();
        let (keys, values) = match kept.take().filter(|kept| kept.text == text && position > 0) {
            Some(before) => (Tensor::cat(vec![before.keys, keys], 1), Tensor::cat(vec![before.values, values], 1)),
            None => (keys, values),
        };
        *kept = Some(Kept { text, keys: keys.clone(), values: values.clone() });
        drop(kept);
        match position {
            0 => causal_attention(query_key_value, heads),
            _ => continued(part(0, of_queries), keys, values, heads),
        }
    }
}

/// Computes causal attention for the newest positions of a text. The queries, and the output, are `[batch, new, query
/// heads x head size]` for the last `new` positions. The keys and values are `[batch, positions, key-value heads x head
/// size]` for all positions.
fn continued(queries: Tensor<3>, keys: Tensor<3>, values: Tensor<3>, heads: AttentionHeads) -> Tensor<3> {
    let ([batch, new, width], [_, positions, _]) = (queries.dims(), keys.dims());
    let (size, group) = (width / heads.query, heads.query / heads.key_value);
    let device = queries.device();
    let queries = queries.reshape([batch, new, heads.key_value, group, size]).permute([0, 2, 3, 1, 4]);
    let of_heads = |all: Tensor<3>| all.reshape([batch, positions, heads.key_value, 1, size]).permute([0, 2, 3, 1, 4]);
    let scores = queries.matmul(of_heads(keys).swap_dims(3, 4)) / (size as f64).sqrt();
    // The distance of each query (row) from each key (column), in positions.
    let of_queries = Tensor::<1, Int>::arange((positions - new) as i64..positions as i64, &device);
    let of_keys = Tensor::<1, Int>::arange(0..positions as i64, &device);
    let shape = [new, positions];
    let distance = of_queries.reshape([new, 1]).expand(shape) - of_keys.reshape([1, positions]).expand(shape);
    let future: Tensor<2, Bool> = distance.clone().lower_elem(0);
    let hidden = match heads.window {
        Some(window) => future.bool_or(distance.greater_equal_elem(window as i64)),
        None => future,
    };
    let hidden = hidden.unsqueeze::<5>().expand(scores.shape());
    let weights = softmax(scores.mask_fill(hidden, f32::NEG_INFINITY), 4);
    weights.matmul(of_heads(values)).permute([0, 3, 1, 2, 4]).reshape([batch, new, width])
}
