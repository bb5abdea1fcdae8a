BEGIN TRANSACTION;
CREATE TABLE attempts (
	"key" INTEGER NOT NULL, 
	study INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	fence BIGINT NOT NULL, 
	started_us BIGINT NOT NULL, 
	ended_us BIGINT, 
	failure TEXT, 
	steps BLOB NOT NULL, 
	CONSTRAINT pk_attempts PRIMARY KEY ("key"), 
	CONSTRAINT fk_attempts_study FOREIGN KEY(study) REFERENCES studies ("key")
);
INSERT INTO "attempts" VALUES(1,1,0,1,1,1795349073908924,1795349073910682,NULL,X'');
INSERT INTO "attempts" VALUES(2,1,1,1,1,1795349073951133,1795349073951828,NULL,X'');
INSERT INTO "attempts" VALUES(3,1,2,1,1,1795349073954263,1795349073954852,NULL,X'');
INSERT INTO "attempts" VALUES(4,1,3,1,1,1795349073957058,1795349073957652,NULL,X'');
INSERT INTO "attempts" VALUES(5,1,4,1,1,1795349073959860,1795349073960359,'{"exception":"Error: \ud800","kind":"OUT_OF_MEMORY","log_tail":["a","b \u2028"],"message":"no room\u0000 left","rank":3,"step":2}',X'');
INSERT INTO "attempts" VALUES(6,2,0,1,1,1795349073968766,1795349073969344,NULL,X'');
INSERT INTO "attempts" VALUES(7,2,1,1,1,1795349073979544,1795349073980385,NULL,X'');
INSERT INTO "attempts" VALUES(8,2,2,1,1,1795349073986763,1795349073987294,NULL,X'');
CREATE TABLE audit (
	sequence INTEGER NOT NULL, 
	at_us BIGINT NOT NULL, 
	actor TEXT NOT NULL, 
	action TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	data TEXT NOT NULL, 
	CONSTRAINT pk_audit PRIMARY KEY (sequence)
);
CREATE TABLE autotune_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT autotune_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "autotune_version" VALUES('0002');
CREATE TABLE calibrations (
	cluster TEXT NOT NULL, 
	trainer TEXT NOT NULL, 
	at_us BIGINT NOT NULL, 
	"values" TEXT NOT NULL, 
	CONSTRAINT pk_calibrations PRIMARY KEY (cluster, trainer)
);
CREATE TABLE events (
	study INTEGER NOT NULL, 
	sequence BIGINT NOT NULL, 
	at_us BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	data TEXT NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (study, sequence), 
	CONSTRAINT fk_events_study FOREIGN KEY(study) REFERENCES studies ("key")
)
 WITHOUT ROWID

;
INSERT INTO "events" VALUES(1,1,1795349073861706,'study.submitted','{"name":"real","owner":""}');
INSERT INTO "events" VALUES(1,2,1795349073888154,'study.claimed','{"fence":1,"owner":"controller"}');
INSERT INTO "events" VALUES(1,3,1795349073898190,'study.running','{"from":"QUEUED","message":""}');
INSERT INTO "events" VALUES(1,4,1795349073907264,'trial.asked','{"config":"tp=1,pp=1,dp=8,micro_batch_size=1,accumulation_steps=1,precision=bf16","number":0,"purpose":"search","reason":"because"}');
INSERT INTO "events" VALUES(1,5,1795349073909946,'trial.started','{"attempt":1,"number":0}');
INSERT INTO "events" VALUES(1,6,1795349073940128,'trial.ended','{"attempts":1,"number":0,"reward":0.3,"status":"COMPLETED","tokens_per_s_per_gpu":8192.0}');
INSERT INTO "events" VALUES(1,7,1795349073950645,'trial.asked','{"config":"tp=2,pp=1,dp=4,micro_batch_size=1,accumulation_steps=1,precision=bf16,sequence_parallel=true,compile=true","number":1,"purpose":"search","reason":"because"}');
INSERT INTO "events" VALUES(1,8,1795349073951267,'trial.started','{"attempt":1,"number":1}');
INSERT INTO "events" VALUES(1,9,1795349073952549,'trial.ended','{"attempts":1,"number":1,"reward":0.3,"status":"COMPLETED","tokens_per_s_per_gpu":8192.0}');
INSERT INTO "events" VALUES(1,10,1795349073953867,'trial.asked','{"config":"tp=1,pp=2,dp=4,micro_batch_size=1,accumulation_steps=1,precision=fp32,recompute=full,zero_stage=1,pp_schedule=interleaved_1f1b,virtual_stages=2","number":2,"purpose":"search","reason":"because"}');
INSERT INTO "events" VALUES(1,11,1795349073954364,'trial.started','{"attempt":1,"number":2}');
INSERT INTO "events" VALUES(1,12,1795349073955465,'trial.ended','{"attempts":1,"number":2,"reward":0.3,"status":"COMPLETED","tokens_per_s_per_gpu":8192.0}');
INSERT INTO "events" VALUES(1,13,1795349073956667,'trial.asked','{"config":"tp=2,pp=1,dp=4,micro_batch_size=1,accumulation_steps=1,precision=bf16,sequence_parallel=true,compile=true","number":3,"purpose":"search","reason":"because"}');
INSERT INTO "events" VALUES(1,14,1795349073957157,'trial.started','{"attempt":1,"number":3}');
INSERT INTO "events" VALUES(1,15,1795349073958303,'trial.ended','{"attempts":1,"number":3,"reward":0.3,"status":"COMPLETED","tokens_per_s_per_gpu":8192.0}');
INSERT INTO "events" VALUES(1,16,1795349073959512,'trial.asked','{"config":"tp=1,pp=1,dp=8,micro_batch_size=4,accumulation_steps=1,precision=bf16","number":4,"purpose":"search","reason":"because"}');
INSERT INTO "events" VALUES(1,17,1795349073959954,'trial.started','{"attempt":1,"number":4}');
INSERT INTO "events" VALUES(1,18,1795349073960589,'trial.ended','{"attempts":1,"failure":{"kind":"OUT_OF_MEMORY","message":"no room\u0000 left"},"number":4,"status":"FAILED"}');
INSERT INTO "events" VALUES(1,19,1795349073961933,'study.released','{"fence":1,"owner":"controller"}');
INSERT INTO "events" VALUES(2,1,1795349073963469,'study.submitted','{"name":"played","owner":""}');
INSERT INTO "events" VALUES(2,2,1795349073965846,'study.claimed','{"fence":1,"owner":"controller"}');
INSERT INTO "events" VALUES(2,3,1795349073966365,'study.running','{"from":"QUEUED","message":""}');
INSERT INTO "events" VALUES(2,4,1795349073968316,'trial.asked','{"config":"tp=1,pp=1,dp=8,micro_batch_size=1,accumulation_steps=1,precision=bf16","number":0,"purpose":"search","reason":"because"}');
INSERT INTO "events" VALUES(2,5,1795349073968875,'trial.started','{"attempt":1,"number":0}');
INSERT INTO "events" VALUES(2,6,1795349073970235,'trial.ended','{"attempts":1,"number":0,"reward":0.3,"status":"COMPLETED","tokens_per_s_per_gpu":8192.0}');
INSERT INTO "events" VALUES(2,7,1795349073978856,'trial.asked','{"config":"tp=2,pp=1,dp=4,micro_batch_size=1,accumulation_steps=1,precision=bf16,sequence_parallel=true,compile=true","number":1,"purpose":"search","reason":"because"}');
INSERT INTO "events" VALUES(2,8,1795349073979705,'trial.started','{"attempt":1,"number":1}');
INSERT INTO "events" VALUES(2,9,1795349073981338,'trial.ended','{"attempts":1,"number":1,"reward":0.3,"status":"COMPLETED","tokens_per_s_per_gpu":8192.0}');
INSERT INTO "events" VALUES(2,10,1795349073986333,'trial.asked','{"config":"tp=4,pp=1,dp=2,micro_batch_size=1,accumulation_steps=1,precision=bf16","number":2,"purpose":"search","reason":"because"}');
INSERT INTO "events" VALUES(2,11,1795349073986867,'trial.started','{"attempt":1,"number":2}');
INSERT INTO "events" VALUES(2,12,1795349073987990,'trial.ended','{"attempts":1,"number":2,"reward":0.3,"status":"COMPLETED","tokens_per_s_per_gpu":8192.0}');
INSERT INTO "events" VALUES(2,13,1795349073992564,'study.released','{"fence":1,"owner":"controller"}');
INSERT INTO "events" VALUES(3,1,1795349074000806,'study.submitted','{"name":"waiting","owner":"ada"}');
CREATE TABLE records (
	workload INTEGER NOT NULL, 
	config_key BIGINT NOT NULL, 
	trial INTEGER NOT NULL, 
	throughput FLOAT NOT NULL, 
	model TEXT NOT NULL, 
	cluster TEXT NOT NULL, 
	trainer TEXT NOT NULL, 
	CONSTRAINT pk_records PRIMARY KEY (workload, config_key), 
	CONSTRAINT fk_records_trial FOREIGN KEY(trial) REFERENCES trials ("key"), 
	CONSTRAINT fk_records_workload FOREIGN KEY(workload) REFERENCES workloads ("key")
)
 WITHOUT ROWID

;
INSERT INTO "records" VALUES(1,-6578960559236175737,1,8192.0,'tiny','gpu-1x8','native');
INSERT INTO "records" VALUES(1,-6274397297755420676,3,8192.0,'tiny','gpu-1x8','native');
INSERT INTO "records" VALUES(1,-3252112902434353289,8,8192.0,'tiny','gpu-1x8','native');
INSERT INTO "records" VALUES(1,1502603662856766237,2,8192.0,'tiny','gpu-1x8','native');
CREATE TABLE reference_losses (
	model TEXT NOT NULL, 
	data TEXT NOT NULL, 
	seed BIGINT NOT NULL, 
	at_us BIGINT NOT NULL, 
	losses BLOB NOT NULL, 
	CONSTRAINT pk_reference_losses PRIMARY KEY (model, data, seed)
);
CREATE TABLE specs (
	study INTEGER NOT NULL, 
	"values" TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	result TEXT NOT NULL, 
	CONSTRAINT pk_specs PRIMARY KEY (study), 
	CONSTRAINT fk_specs_study FOREIGN KEY(study) REFERENCES studies ("key")
);
INSERT INTO "specs" VALUES(1,'{"baseline":{"accumulation_steps":1,"compile":false,"cp":1,"dp":8,"ep":1,"micro_batch_size":1,"pp":1,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":1,"virtual_stages":1,"zero_stage":0},"budget":{"max_failed_trials":10,"max_gpu_s":100.5,"max_trials":7,"max_wall_s":3600.0,"min_gain":0.01,"parallel_trials":1,"train_tokens":null},"data":null,"enqueue":[{"accumulation_steps":1,"compile":false,"cp":1,"dp":4,"ep":1,"micro_batch_size":1,"pp":1,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":2,"virtual_stages":1,"zero_stage":0},{"accumulation_steps":1,"compile":false,"cp":1,"dp":4,"ep":1,"micro_batch_size":1,"pp":2,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":1,"virtual_stages":1,"zero_stage":0}],"left_out":[],"measure":{"final_rounds":2,"finalists":2,"first_look":3,"max_steps":30,"min_steps":5,"precision":0.03,"stability_steps":0,"start_timeout_s":120.0,"step_timeout_s":60.0,"trial_timeout_s":600.0,"warmup_steps":2},"name":"real","objective":{"metric":"throughput","stability_weight":0.2},"runner":"ray","runner_options":{},"searcher":"bayesian","seed":0,"space":{"knobs":{"compile":[false,true],"precision":["bf16"],"tp":[1,2,4]},"name":"inline","world_sizes":[8]},"trainer":"native","trainer_options":{"argv":["train","--lr","1e-4"],"nested":{"a":null}},"workload":{"cluster":{"cores_per_node":null,"gpu":{"memory_bytes":80000000000.0,"memory_bytes_per_s":3000000000000.0,"name":"gpu","peak_flops_per_s":{"bf16":1000000000000000.0},"power_watts":null,"source":"","usd_per_hour":null},"gpus_per_node":8,"inter_node":{"bytes_per_s":25000000000.0,"latency_s":1e-05},"intra_node":{"bytes_per_s":64000000000.0,"latency_s":5e-06},"name":"gpu-1x8","num_nodes":1},"global_batch_size":[32,64],"model":{"attention_head_dim":0,"experts_per_token":0,"ffn_hidden_size":1024,"gated_mlp":false,"hidden_size":256,"max_positions":0,"name":"tiny","num_attention_heads":4,"num_experts":0,"num_kv_heads":4,"num_layers":4,"tied_embeddings":false,"vocab_size":1000},"optimizer":"adamw","seq_len":1024,"trainer":"native"}}','{}','{}');
INSERT INTO "specs" VALUES(2,'{"baseline":{"accumulation_steps":1,"compile":false,"cp":1,"dp":8,"ep":1,"micro_batch_size":1,"pp":1,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":1,"virtual_stages":1,"zero_stage":0},"budget":{"max_failed_trials":10,"max_gpu_s":100.5,"max_trials":7,"max_wall_s":3600.0,"min_gain":0.01,"parallel_trials":1,"train_tokens":null},"data":null,"enqueue":[{"accumulation_steps":1,"compile":false,"cp":1,"dp":4,"ep":1,"micro_batch_size":1,"pp":1,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":2,"virtual_stages":1,"zero_stage":0},{"accumulation_steps":1,"compile":false,"cp":1,"dp":4,"ep":1,"micro_batch_size":1,"pp":2,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":1,"virtual_stages":1,"zero_stage":0}],"left_out":[],"measure":{"final_rounds":2,"finalists":2,"first_look":3,"max_steps":30,"min_steps":5,"precision":0.03,"stability_steps":0,"start_timeout_s":120.0,"step_timeout_s":60.0,"trial_timeout_s":600.0,"warmup_steps":2},"name":"played","objective":{"metric":"throughput","stability_weight":0.2},"runner":"simulated","runner_options":{},"searcher":"bayesian","seed":0,"space":{"knobs":{"compile":[false,true],"precision":["bf16"],"tp":[1,2,4]},"name":"inline","world_sizes":[8]},"trainer":"native","trainer_options":{"argv":["train","--lr","1e-4"],"nested":{"a":null}},"workload":{"cluster":{"cores_per_node":null,"gpu":{"memory_bytes":80000000000.0,"memory_bytes_per_s":3000000000000.0,"name":"gpu","peak_flops_per_s":{"bf16":1000000000000000.0},"power_watts":null,"source":"","usd_per_hour":null},"gpus_per_node":8,"inter_node":{"bytes_per_s":25000000000.0,"latency_s":1e-05},"intra_node":{"bytes_per_s":64000000000.0,"latency_s":5e-06},"name":"gpu-1x8","num_nodes":1},"global_batch_size":[32,64],"model":{"attention_head_dim":0,"experts_per_token":0,"ffn_hidden_size":1024,"gated_mlp":false,"hidden_size":256,"max_positions":0,"name":"tiny","num_attention_heads":4,"num_experts":0,"num_kv_heads":4,"num_layers":4,"tied_embeddings":false,"vocab_size":1000},"optimizer":"adamw","seq_len":1024,"trainer":"native"}}','{}','{}');
INSERT INTO "specs" VALUES(3,'{"baseline":{"accumulation_steps":1,"compile":false,"cp":1,"dp":8,"ep":1,"micro_batch_size":1,"pp":1,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":1,"virtual_stages":1,"zero_stage":0},"budget":{"max_failed_trials":10,"max_gpu_s":100.5,"max_trials":7,"max_wall_s":3600.0,"min_gain":0.01,"parallel_trials":1,"train_tokens":null},"data":null,"enqueue":[{"accumulation_steps":1,"compile":false,"cp":1,"dp":4,"ep":1,"micro_batch_size":1,"pp":1,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":2,"virtual_stages":1,"zero_stage":0},{"accumulation_steps":1,"compile":false,"cp":1,"dp":4,"ep":1,"micro_batch_size":1,"pp":2,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":1,"virtual_stages":1,"zero_stage":0}],"left_out":[],"measure":{"final_rounds":2,"finalists":2,"first_look":3,"max_steps":30,"min_steps":5,"precision":0.03,"stability_steps":0,"start_timeout_s":120.0,"step_timeout_s":60.0,"trial_timeout_s":600.0,"warmup_steps":2},"name":"waiting","objective":{"metric":"throughput","stability_weight":0.2},"runner":"ray","runner_options":{},"searcher":"bayesian","seed":0,"space":{"knobs":{"compile":[false,true],"precision":["bf16"],"tp":[1,2,4]},"name":"inline","world_sizes":[8]},"trainer":"native","trainer_options":{"argv":["train","--lr","1e-4"],"nested":{"a":null}},"workload":{"cluster":{"cores_per_node":null,"gpu":{"memory_bytes":80000000000.0,"memory_bytes_per_s":3000000000000.0,"name":"gpu","peak_flops_per_s":{"bf16":1000000000000000.0},"power_watts":null,"source":"","usd_per_hour":null},"gpus_per_node":8,"inter_node":{"bytes_per_s":25000000000.0,"latency_s":1e-05},"intra_node":{"bytes_per_s":64000000000.0,"latency_s":5e-06},"name":"gpu-1x8","num_nodes":1},"global_batch_size":[32,64],"model":{"attention_head_dim":0,"experts_per_token":0,"ffn_hidden_size":1024,"gated_mlp":false,"hidden_size":256,"max_positions":0,"name":"tiny","num_attention_heads":4,"num_experts":0,"num_kv_heads":4,"num_layers":4,"tied_embeddings":false,"vocab_size":1000},"optimizer":"adamw","seq_len":1024,"trainer":"native"}}','{"x":1}','{}');
CREATE TABLE studies (
	"key" INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	workload INTEGER NOT NULL, 
	status TEXT NOT NULL, 
	message TEXT NOT NULL, 
	created_us BIGINT NOT NULL, 
	updated_us BIGINT NOT NULL, 
	started_us BIGINT, 
	ended_us BIGINT, 
	elapsed_s FLOAT NOT NULL, 
	baseline INTEGER, 
	best INTEGER, 
	speedup FLOAT, 
	lease_owner TEXT NOT NULL, 
	lease_expires_us BIGINT NOT NULL, 
	fence BIGINT NOT NULL, 
	num_trials INTEGER NOT NULL, 
	num_events BIGINT NOT NULL, 
	CONSTRAINT pk_studies PRIMARY KEY ("key"), 
	CONSTRAINT fk_studies_workload FOREIGN KEY(workload) REFERENCES workloads ("key"), 
	CONSTRAINT uq_studies_id UNIQUE (id)
);
INSERT INTO "studies" VALUES(1,'pmvhy7qx25','real','',1,'RUNNING','',1795349073855534,1795349073961933,1795349073889208,NULL,0.0,NULL,NULL,NULL,'',0,1,5,19);
INSERT INTO "studies" VALUES(2,'baxayjacds','played','',1,'RUNNING','',1795349073962581,1795349073992564,1795349073966177,NULL,0.0,NULL,NULL,NULL,'',0,1,3,13);
INSERT INTO "studies" VALUES(3,'n3j2j95wbe','waiting','ada',1,'QUEUED','',1795349073996979,1795349074000806,NULL,NULL,0.0,NULL,NULL,NULL,'',0,0,0,1);
CREATE TABLE submissions (
	owner TEXT NOT NULL, 
	idempotency_key TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	study INTEGER NOT NULL, 
	CONSTRAINT pk_submissions PRIMARY KEY (owner, idempotency_key), 
	CONSTRAINT fk_submissions_study FOREIGN KEY(study) REFERENCES studies ("key")
)
 WITHOUT ROWID

;
INSERT INTO "submissions" VALUES('ada','k','33c92164168008ddedc6b4c41b3c9ead',3);
CREATE TABLE tokens (
	id TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	scope TEXT NOT NULL, 
	salt BLOB NOT NULL, 
	hash BLOB NOT NULL, 
	created_us BIGINT NOT NULL, 
	expires_us BIGINT, 
	revoked_us BIGINT, 
	CONSTRAINT pk_tokens PRIMARY KEY (id)
);
CREATE TABLE trials (
	"key" INTEGER NOT NULL, 
	study INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	workload INTEGER NOT NULL, 
	config_key BIGINT NOT NULL, 
	config TEXT NOT NULL, 
	seed BIGINT NOT NULL, 
	status TEXT NOT NULL, 
	purpose TEXT NOT NULL, 
	attempts INTEGER NOT NULL, 
	failure TEXT, 
	throughput FLOAT, 
	reward FLOAT, 
	created_us BIGINT NOT NULL, 
	started_us BIGINT, 
	ended_us BIGINT, 
	document BLOB NOT NULL, 
	CONSTRAINT pk_trials PRIMARY KEY ("key"), 
	CONSTRAINT fk_trials_study FOREIGN KEY(study) REFERENCES studies ("key"), 
	CONSTRAINT fk_trials_workload FOREIGN KEY(workload) REFERENCES workloads ("key")
);
INSERT INTO "trials" VALUES(1,1,0,1,-6578960559236175737,'tp=1,pp=1,dp=8,micro_batch_size=1,accumulation_steps=1,precision=bf16',0,'COMPLETED','search',1,NULL,8192.0,0.3,1795349073906297,1795349073908924,1767323045678901,X'0178BB9B2A9D39DDD4CD0E82300C00E077F14C961528CCC74133132E4814E5407877D9C6A0852107E2450E84763F095BFB7587A4527F281548FF9856236AF10122181FF09AF12C696B3E302947D35E3C29D2307A10ACD08CEDBC2560BE398B68886CD25A46E0E9114729D4C24729CEDF880442A48B66E880286923CD2272A22E7656DAEF9ACD6C48B41213A69F0CCB09318E37F203DECC29DAB414B8A6AEAC1AFD789B3E9D97EE4A880223143146DD0CDFD04F65753BF5DB4ABA4D76A454212ADDCA4031E6482BE8009DAE02F7F544738AE6956288D024CE33B574F454DFDB61465B34A605537BD394D68BBE16AFA70E0A6BCFDC7602B7D6953CE1569AEBF0E44A91F4FD074DD6C8AD');
INSERT INTO "trials" VALUES(2,1,1,1,1502603662856766237,'tp=2,pp=1,dp=4,micro_batch_size=1,accumulation_steps=1,precision=bf16,sequence_parallel=true,compile=true',1,'COMPLETED','search',1,NULL,8192.0,0.3,1795349073950271,1795349073951133,1767323045678901,X'0178BB9B2A9D39C5D4CD0E83200C00E077F16C082055F7386E718917671CCE83F1DD27E04FAB38B32C661E8C2D6014DAAFFB422A5D37142AF507A8DC4718A7E4194E093E5DA6D190597400F9450726CB681635351D988DC3E9C93BCE949F3CE1ADCF98BC79CFBF647716B210C8A4AD8B82A6471A394B573A7276F904A44040BA68614E20236D949308EDA88B9D94F6B92233358A365E8AF927FD6E0A09E3899C809BD9459BE60CB6D015A5CEEB97E9D265E9A183C020042621EC16F686762ACA7BD0EF1BE95E72E064EA83D2ADF4146302B8827E80D355E0B19D6076D1DC14F8008D6412A76B4583EAD10E33DA4C9B1654F6A431ACD7FC9635CFDCEBABDD73DB09545A57F2085B6E8E630297B3A8EFDF00F5C814');
INSERT INTO "trials" VALUES(3,1,2,1,-6274397297755420676,'tp=1,pp=2,dp=4,micro_batch_size=1,accumulation_steps=1,precision=fp32,recompute=full,zero_stage=1,pp_schedule=interleaved_1f1b,virtual_stages=2',2,'COMPLETED','search',1,NULL,8192.0,0.3,1795349073953613,1795349073954263,1767323045678901,X'0178BB9B2A9D39B5D4DB0E82300C00D07FE1992CDBA0809F836624264689223C18FE5DB67169C77051220F84EE96D0B5E7B54BAA342C9574A53A5F1B75BFA8B21D72E151ABAA13E9A8550D77FD8B5A92AA25BE574BF0E9D16D8704A31348333A31C94647518BD389593C3C3CE9C759EA075078AB3523276F69986FAE42320259B45652D0E1114ACE0AC74ACE0E9FB814884B1B2DE80924A689148950466D6CDD34DF3559D9A068A5A7987FD2AFA89030DEC81FA8D35934C39CC19A3DD335ADEED9656B50456010039310BF16044D075651BF2DA63D24A066E163D3EEF414630EB88276306A2B302C29E82CEA570A3E4E139967856B6A54DFBA61455736BA055373D398D9A33A95CF87F26A6B726E3A81BA6B4B1ED1CBF5754CFC7296F4FD1B4196CDAD');
INSERT INTO "trials" VALUES(4,1,3,1,1502603662856766237,'tp=2,pp=1,dp=4,micro_batch_size=1,accumulation_steps=1,precision=bf16,sequence_parallel=true,compile=true',3,'COMPLETED','search',1,NULL,8192.0,0.3,1795349073956426,1795349073957058,1767323045678901,X'0178BB9B2A9D39C5D4CD0E83200C00E077F16C082055F7386E718917671CCE83F1DD27E04FAB38B32C661E8C2D6014DAAFFB422A5D37142AF507A8DC4718A7E4194E093E5DA6D190597400F9450726CB681635351D988DC3E9C93BCE949F3CE1ADCF98BC79CFBF647716B210C8A4AD8B82A6471A394B573A7276F904A44040BA68614E20236D949308EDA88B9D94F6B92233358A365E8AF927FD6E0A09E3899C809BD9459BE60CB6D015A5CEEB97E9D265E9A183C020042621EC16F686762ACA7BD0EF1BE95E72E064EA83D2ADF4146302B8827E80D355E0B19D6076D1DC14F8008D6412A76B4583EAD10E33DA4C9B1654F6A431ACD7FC9635CFDCEBABDD73DB09545A57F2085B6E8E630297B3A8EFDF00F5C814');
INSERT INTO "trials" VALUES(5,1,4,1,327151522937161745,'tp=1,pp=1,dp=8,micro_batch_size=4,accumulation_steps=1,precision=bf16',4,'FAILED','search',1,'OUT_OF_MEMORY',NULL,NULL,1795349073959308,1795349073959860,1795349073960359,X'0178BB9B2A9D39D5D4C10E82300C06E057213C006927E8F4EE5B70019D272366C2C9F8EE8E8DCD163662E2494EFC6D21C0D8F7FC492AB92255F9A75221F863DC6A442DDE2082F186D78C57C9B6E68DA01C2D7BF1A028E3E861F40FDDB23BA704DC25A78886151B5ACA88BC3CE108859CF908C57E8D482444BAF4810E8992362996C81775D95969CFEF6CB22769212686978CCB89A29A562401E851EB4E1FB27A384B80AF34CD1B935B738500217366EBADCBB459EF7A181F2ABBAA4B1FB4DD786DC56B66ABB33070D0AA53333C1451C1FAFC066FA93BE4');
INSERT INTO "trials" VALUES(6,2,0,1,-6578960559236175737,'tp=1,pp=1,dp=8,micro_batch_size=1,accumulation_steps=1,precision=bf16',0,'COMPLETED','search',1,NULL,8192.0,0.3,1795349073968038,1795349073968766,1767323045678901,X'0178BB9B2A9D39DDD4CD0E82300C00E077F14C961528CCC74133132E4814E5407877D9C6A0852107E2450E84763F095BFB7587A4527F281548FF9856236AF10122181FF09AF12C696B3E302947D35E3C29D2307A10ACD08CEDBC2560BE398B68886CD25A46E0E9114729D4C24729CEDF880442A48B66E880286923CD2272A22E7656DAEF9ACD6C48B41213A69F0CCB09318E37F203DECC29DAB414B8A6AEAC1AFD789B3E9D97EE4A880223143146DD0CDFD04F65753BF5DB4ABA4D76A454212ADDCA4031E6482BE8009DAE02F7F544738AE6956288D024CE33B574F454DFDB61465B34A605537BD394D68BBE16AFA70E0A6BCFDC7602B7D6953CE1569AEBF0E44A91F4FD074DD6C8AD');
INSERT INTO "trials" VALUES(7,2,1,1,1502603662856766237,'tp=2,pp=1,dp=4,micro_batch_size=1,accumulation_steps=1,precision=bf16,sequence_parallel=true,compile=true',1,'COMPLETED','search',1,NULL,8192.0,0.3,1795349073978249,1795349073979544,1767323045678901,X'0178BB9B2A9D39C5D4CD0E83200C00E077F16C082055F7386E718917671CCE83F1DD27E04FAB38B32C661E8C2D6014DAAFFB422A5D37142AF507A8DC4718A7E4194E093E5DA6D190597400F9450726CB681635351D988DC3E9C93BCE949F3CE1ADCF98BC79CFBF647716B210C8A4AD8B82A6471A394B573A7276F904A44040BA68614E20236D949308EDA88B9D94F6B92233358A365E8AF927FD6E0A09E3899C809BD9459BE60CB6D015A5CEEB97E9D265E9A183C020042621EC16F686762ACA7BD0EF1BE95E72E064EA83D2ADF4146302B8827E80D355E0B19D6076D1DC14F8008D6412A76B4583EAD10E33DA4C9B1654F6A431ACD7FC9635CFDCEBABDD73DB09545A57F2085B6E8E630297B3A8EFDF00F5C814');
INSERT INTO "trials" VALUES(8,2,2,1,-3252112902434353289,'tp=4,pp=1,dp=2,micro_batch_size=1,accumulation_steps=1,precision=bf16',2,'COMPLETED','search',1,NULL,8192.0,0.3,1795349073986037,1795349073986763,1767323045678901,X'0178BB9B2A9D39C5D4CD0E83200C00E077F16C082055F7386E6189176736370FC6779F8068AB380FC6CC83B1E52711DAAF3B2495FCAF54EA0CA904F78F6935A4161D4082D101AF19CDA2B6A603937238EDC5E34C85D113C10A4DC9CE5B02669BB390864026AD6514343DE2C859BEF091B3CB2F220522D2453374022969234D2274A22E7656DAEF9ACC6C50B412534C3F19965348186FE404DECC29DA3467B0A6AEAC1AFDFC983E9D97EE4A080C626012E26E866FE8A7B2BA47FDB6926E931D29F310956E65A01833C01574804E5781FB7A823945F35210223491599A2F1D8DEA473BCC688BC6B4A0B2378D69BDEA5BF17EE9A0B0F6CC6D27506B5DC9236EB9B90E4F2E6749DF7F013CB1C8AA');
CREATE TABLE workloads (
	"key" INTEGER NOT NULL, 
	fingerprint TEXT NOT NULL, 
	model TEXT NOT NULL, 
	cluster TEXT NOT NULL, 
	gpu TEXT NOT NULL, 
	num_gpus BIGINT NOT NULL, 
	trainer TEXT NOT NULL, 
	seq_len BIGINT NOT NULL, 
	workload TEXT NOT NULL, 
	CONSTRAINT pk_workloads PRIMARY KEY ("key"), 
	CONSTRAINT uq_workloads_fingerprint UNIQUE (fingerprint)
);
INSERT INTO "workloads" VALUES(1,'dbceff6f8a9964f632321550dc4cc672','tiny','gpu-1x8','gpu',8,'native',1024,'{"cluster":{"cores_per_node":null,"gpu":{"memory_bytes":80000000000.0,"memory_bytes_per_s":3000000000000.0,"name":"gpu","peak_flops_per_s":{"bf16":1000000000000000.0},"power_watts":null,"source":"","usd_per_hour":null},"gpus_per_node":8,"inter_node":{"bytes_per_s":25000000000.0,"latency_s":1e-05},"intra_node":{"bytes_per_s":64000000000.0,"latency_s":5e-06},"name":"gpu-1x8","num_nodes":1},"global_batch_size":[32,64],"model":{"attention_head_dim":0,"experts_per_token":0,"ffn_hidden_size":1024,"gated_mlp":false,"hidden_size":256,"max_positions":0,"name":"tiny","num_attention_heads":4,"num_experts":0,"num_kv_heads":4,"num_layers":4,"tied_embeddings":false,"vocab_size":1000},"optimizer":"adamw","seq_len":1024,"trainer":"native"}');
CREATE INDEX ix_workloads_model_cluster ON workloads (model, cluster);
CREATE INDEX ix_studies_created_us ON studies (created_us);
CREATE INDEX ix_studies_name ON studies (name);
CREATE INDEX ix_studies_status_created_us ON studies (status, created_us);
CREATE UNIQUE INDEX uq_attempts_study_number_attempt ON attempts (study, number, attempt);
CREATE INDEX ix_trials_measured ON trials (workload, config_key, throughput) WHERE throughput IS NOT NULL;
CREATE INDEX ix_trials_status_failure ON trials (status, failure);
CREATE INDEX ix_trials_study_status ON trials (study, status);
CREATE UNIQUE INDEX uq_trials_study_number ON trials (study, number);
CREATE INDEX ix_records_cluster ON records (cluster, throughput);
CREATE INDEX ix_records_model ON records (model, throughput);
CREATE INDEX ix_records_model_cluster ON records (model, cluster, throughput);
CREATE INDEX ix_records_throughput ON records (throughput);
COMMIT;
