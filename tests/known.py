"""Figures that were found once, by a byte map of every block of every dump, and that more than one test holds."""

# How many times the needed bytes the engine's own segments write; all other dumps: 1.00.
ENGINE_TIMES = {
    "llama3_8b_bf16__BHLNC": 28.1,
    "fp8_target_bf16_drafter_same_page__BHLNC": 26.6,
    "gptoss_18sw_18full__BHLNC": 15.9,
    "nvfp4__BHLNC": 15.1,
    "int8_per_token_head__BHLNC": 14.1,
    "numblocks1__BHLNC": 3.6,
    "dsv4_c4_full__BLHNC": 1.71,
    "dsv4_c4_full__BLNHC": 1.71,
    "dsv4_mixed_ratio__BLHNC": 1.63,
    "dsv4_mixed_ratio__BLNHC": 1.63,
    "fp8_target_bf16_swa_drafter__BLHNC": 1.25,
    "fp8_target_bf16_swa_drafter__BLNHC": 1.25,
    "mla_plus_swa_draft_padded__BLHNC": 1.11,
    "mla_plus_swa_draft_padded__BLNHC": 1.11,
}
