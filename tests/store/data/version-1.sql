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
INSERT INTO "attempts" VALUES(1,1,0,1,1,1795286250939928,1795286250945943,NULL,X'');
INSERT INTO "attempts" VALUES(2,1,1,1,1,1795286250998725,1795286250999331,NULL,X'');
INSERT INTO "attempts" VALUES(3,1,2,1,1,1795286251009768,1795286251010343,NULL,X'');
INSERT INTO "attempts" VALUES(4,1,3,1,1,1795286251028466,1795286251029055,NULL,X'');
INSERT INTO "attempts" VALUES(5,1,4,1,1,1795286251037637,1795286251038168,'{"exception":"Error: \ud800","kind":"OUT_OF_MEMORY","log_tail":["a","b \u2028"],"message":"no room\u0000 left","rank":3,"step":2}',X'');
CREATE TABLE autotune_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT autotune_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "autotune_version" VALUES('0001');
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
INSERT INTO "events" VALUES(1,1,1795286250890699,'study.submitted','{"name":"old","owner":""}');
INSERT INTO "events" VALUES(1,2,1795286250920976,'study.claimed','{"fence":1,"owner":"controller"}');
INSERT INTO "events" VALUES(1,3,1795286250922802,'study.running','{"from":"QUEUED","message":""}');
INSERT INTO "events" VALUES(1,4,1795286250938280,'trial.asked','{"config":"tp=1,pp=1,dp=8,micro_batch_size=1,accumulation_steps=1,precision=bf16","number":0,"purpose":"search","reason":"because"}');
INSERT INTO "events" VALUES(1,5,1795286250944996,'trial.started','{"attempt":1,"number":0}');
INSERT INTO "events" VALUES(1,6,1795286250986265,'trial.ended','{"attempts":1,"number":0,"reward":0.3,"status":"COMPLETED","tokens_per_s_per_gpu":8192.0}');
INSERT INTO "events" VALUES(1,7,1795286250998192,'trial.asked','{"config":"tp=1,pp=1,dp=8,micro_batch_size=1,accumulation_steps=1,precision=bf16","number":1,"purpose":"search","reason":"because"}');
INSERT INTO "events" VALUES(1,8,1795286250998846,'trial.started','{"attempt":1,"number":1}');
INSERT INTO "events" VALUES(1,9,1795286250999976,'trial.ended','{"attempts":1,"number":1,"reward":0.3,"status":"COMPLETED","tokens_per_s_per_gpu":40960.0}');
INSERT INTO "events" VALUES(1,10,1795286251009300,'trial.asked','{"config":"tp=1,pp=1,dp=8,micro_batch_size=1,accumulation_steps=1,precision=bf16","number":2,"purpose":"search","reason":"because"}');
INSERT INTO "events" VALUES(1,11,1795286251009868,'trial.started','{"attempt":1,"number":2}');
INSERT INTO "events" VALUES(1,12,1795286251015218,'trial.ended','{"attempts":1,"number":2,"reward":0.3,"status":"COMPLETED","tokens_per_s_per_gpu":10240.0}');
INSERT INTO "events" VALUES(1,13,1795286251027930,'trial.asked','{"config":"tp=1,pp=1,dp=8,micro_batch_size=4,accumulation_steps=1,precision=bf16","number":3,"purpose":"search","reason":"because"}');
INSERT INTO "events" VALUES(1,14,1795286251028568,'trial.started','{"attempt":1,"number":3}');
INSERT INTO "events" VALUES(1,15,1795286251029675,'trial.ended','{"attempts":1,"number":3,"reward":0.3,"status":"COMPLETED","tokens_per_s_per_gpu":13653.333333333334}');
INSERT INTO "events" VALUES(1,16,1795286251037183,'trial.asked','{"config":"tp=1,pp=1,dp=8,micro_batch_size=5,accumulation_steps=1,precision=bf16","number":4,"purpose":"search","reason":"because"}');
INSERT INTO "events" VALUES(1,17,1795286251037732,'trial.started','{"attempt":1,"number":4}');
INSERT INTO "events" VALUES(1,18,1795286251038402,'trial.ended','{"attempts":1,"failure":{"kind":"OUT_OF_MEMORY","message":"no room\u0000 left"},"number":4,"status":"FAILED"}');
INSERT INTO "events" VALUES(1,19,1795286251048842,'study.completed','{"from":"RUNNING","message":""}');
INSERT INTO "events" VALUES(2,1,1795286252596518,'study.submitted','{"name":"waiting","owner":"ada"}');
CREATE TABLE specs (
	study INTEGER NOT NULL, 
	"values" TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	result TEXT NOT NULL, 
	CONSTRAINT pk_specs PRIMARY KEY (study), 
	CONSTRAINT fk_specs_study FOREIGN KEY(study) REFERENCES studies ("key")
);
INSERT INTO "specs" VALUES(1,'{"baseline":{"accumulation_steps":1,"compile":false,"cp":1,"dp":8,"ep":1,"micro_batch_size":1,"pp":1,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":1,"virtual_stages":1,"zero_stage":0},"budget":{"max_failed_trials":10,"max_gpu_s":100.5,"max_trials":7,"max_wall_s":3600.0,"min_gain":0.01,"parallel_trials":1},"data":null,"enqueue":[{"accumulation_steps":1,"compile":false,"cp":1,"dp":4,"ep":1,"micro_batch_size":1,"pp":1,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":2,"virtual_stages":1,"zero_stage":0},{"accumulation_steps":1,"compile":false,"cp":1,"dp":4,"ep":1,"micro_batch_size":1,"pp":2,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":1,"virtual_stages":1,"zero_stage":0}],"measure":{"final_rounds":2,"finalists":2,"max_steps":30,"min_steps":5,"precision":0.03,"start_timeout_s":120.0,"step_timeout_s":60.0,"trial_timeout_s":600.0,"warmup_steps":2},"name":"old","objective":{"metric":"throughput","stability_weight":0.2},"runner":"ray","runner_options":{},"searcher":"bayesian","seed":0,"space":{"knobs":{"compile":[false,true],"precision":["bf16"],"tp":[1,2,4]},"name":"inline","world_sizes":[8]},"trainer":"native","trainer_options":{"argv":["train","--lr","1e-4"],"nested":{"a":null}},"workload":{"cluster":{"gpu":{"memory_bytes":80000000000.0,"memory_bytes_per_s":3000000000000.0,"name":"gpu","peak_flops_per_s":{"bf16":1000000000000000.0},"power_watts":null,"source":"","usd_per_hour":null},"gpus_per_node":8,"inter_node":{"bytes_per_s":25000000000.0,"latency_s":1e-05},"intra_node":{"bytes_per_s":64000000000.0,"latency_s":5e-06},"name":"gpu-1x8","num_nodes":1},"global_batch_size":[32,64],"model":{"attention_head_dim":0,"experts_per_token":0,"ffn_hidden_size":1024,"gated_mlp":false,"hidden_size":256,"max_positions":0,"name":"tiny","num_attention_heads":4,"num_experts":0,"num_kv_heads":4,"num_layers":4,"tied_embeddings":false,"vocab_size":1000},"optimizer":"adamw","seq_len":1024,"trainer":"native"}}','{}','{}');
INSERT INTO "specs" VALUES(2,'{"baseline":{"accumulation_steps":1,"compile":false,"cp":1,"dp":8,"ep":1,"micro_batch_size":1,"pp":1,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":1,"virtual_stages":1,"zero_stage":0},"budget":{"max_failed_trials":10,"max_gpu_s":100.5,"max_trials":7,"max_wall_s":3600.0,"min_gain":0.01,"parallel_trials":1},"data":null,"enqueue":[{"accumulation_steps":1,"compile":false,"cp":1,"dp":4,"ep":1,"micro_batch_size":1,"pp":1,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":2,"virtual_stages":1,"zero_stage":0},{"accumulation_steps":1,"compile":false,"cp":1,"dp":4,"ep":1,"micro_batch_size":1,"pp":2,"pp_schedule":"1f1b","precision":"bf16","recompute":"none","sequence_parallel":false,"tp":1,"virtual_stages":1,"zero_stage":0}],"measure":{"final_rounds":2,"finalists":2,"max_steps":30,"min_steps":5,"precision":0.03,"start_timeout_s":120.0,"step_timeout_s":60.0,"trial_timeout_s":600.0,"warmup_steps":2},"name":"waiting","objective":{"metric":"throughput","stability_weight":0.2},"runner":"ray","runner_options":{},"searcher":"bayesian","seed":0,"space":{"knobs":{"compile":[false,true],"precision":["bf16"],"tp":[1,2,4]},"name":"inline","world_sizes":[8]},"trainer":"native","trainer_options":{"argv":["train","--lr","1e-4"],"nested":{"a":null}},"workload":{"cluster":{"gpu":{"memory_bytes":80000000000.0,"memory_bytes_per_s":3000000000000.0,"name":"gpu","peak_flops_per_s":{"bf16":1000000000000000.0},"power_watts":null,"source":"","usd_per_hour":null},"gpus_per_node":8,"inter_node":{"bytes_per_s":25000000000.0,"latency_s":1e-05},"intra_node":{"bytes_per_s":64000000000.0,"latency_s":5e-06},"name":"gpu-1x8","num_nodes":1},"global_batch_size":[32,64],"model":{"attention_head_dim":0,"experts_per_token":0,"ffn_hidden_size":1024,"gated_mlp":false,"hidden_size":256,"max_positions":0,"name":"tiny","num_attention_heads":4,"num_experts":0,"num_kv_heads":4,"num_layers":4,"tied_embeddings":false,"vocab_size":1000},"optimizer":"adamw","seq_len":1024,"trainer":"native"}}','{"x":1}','{}');
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
INSERT INTO "studies" VALUES(1,'edmytv2cs5','old','',1,'COMPLETED','',1795286250876383,1795286251048842,1795286250922255,1795286251040543,0.0,NULL,3,NULL,'controller',1795289850914930,1,5,19);
INSERT INTO "studies" VALUES(2,'j8rr69gfjf','waiting','ada',1,'QUEUED','',1795286251062895,1795286252596518,NULL,NULL,0.0,NULL,NULL,NULL,'',0,0,0,1);
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
INSERT INTO "submissions" VALUES('ada','k','817374dde305ccf6d1449edea1e61b7b',2);
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
INSERT INTO "trials" VALUES(1,1,0,1,-6578960559236175737,'tp=1,pp=1,dp=8,micro_batch_size=1,accumulation_steps=1,precision=bf16',0,'COMPLETED','search',1,NULL,8192.0,0.3,1795286250937192,1795286250939928,1767323045678901,X'0178BB9B2A9D39DDD4C10A83300C00D07FF12CA555A3DDE7B8E160974D98C383F8EFB38DD544E31CC82EF32026AD8269F2BA4352D93F94CAE870B951236AF10522185F089AF12C196BBE302947D3413CAD32193D237668CEBEBC2560B1B98B68086CD35A46C3D3238E5AD9858F5A9D3E1169089118CDD019A2A48F2A16918A628C56FAE79AED6C48B412D34C3F29CB6912184FE407BCB92AFAB456F02D75A020069540DCCDB20D0373BB5FA37E9B41FCC80E8556B210DF14BAAD00DA22076CC416DBE7115C99DC2D03C9C8342972BB8432AA1FEDB0A32D1B3763993F4A6AE7B9BA94AF672512EA6BEE5B9D638A3D4D3CD5EE3882A95AA57DFF061F98BCB9');
INSERT INTO "trials" VALUES(2,1,1,1,-6578960559236175737,'tp=1,pp=1,dp=8,micro_batch_size=1,accumulation_steps=1,precision=bf16',1,'COMPLETED','search',1,NULL,40960.0,0.3,1795286250997810,1795286250998725,1767323045678901,X'0178BB9B2A9D39DDD4C10A83300C00D07FD9594AA246EBE7B8E160974D98C383F8EFB3ADD544EB1CC82EF364D25AB0495E77482AFD875221F8C78C1A534B2E30C1E482D74C66D958CB8549399EF6E2814AC3E861B0433371F29680F9E62EA621894D6B1951A6471C41E9858FA08A4F442223D2453374C894B451252276A32E7656DAF75AEC6C58B41213A79F0CCB89318D15F9016FE6166D1A147D4B1D298A48C51475B36CC3C0DCEED753BFCDA03B6487421DB2D07D19E8B69C788B1CB0D1B5D83E8F385C13CE63621F938362910B099AC479A6978C9EEA473BEC68CBC64C606A0BCD653D5797F2F5AC82C0DA8AD84190D4BA8E67DA822996171754D2F76FD9CCC24F');
INSERT INTO "trials" VALUES(3,1,2,1,-6578960559236175737,'tp=1,pp=1,dp=8,micro_batch_size=1,accumulation_steps=1,precision=bf16',2,'COMPLETED','search',1,NULL,10240.0,0.3,1795286251008964,1795286251009768,1767323045678901,X'0178BB9B2A9D39DDD4CD0E83200C00E077F16C082845F6386E61C92E9BC95C3C18DF7DFC88B68A7389D9659C6C41A2D07EFD21A9F41F4A25781CAED5905A7402094627A266348BDA9A4E4CCAE174148F3399464F242B54919DB704AC3657210D812C5ACB28687AC49133BDF091B3D327220522324433740229E923432274A2210E56FAE786AC6C51B412534C3F9996531430DEC80F7873A7E8D39CC1B7D401831C5801793FCB661BE676BF66C3368361931D0A75CAC2F066A2DA2AC02572C0C65062FB3C4A7B4C52723294CD958AE6644AD0B2A8945E329A358FCEAEE8EAD675A0F4178D653D9B4BFD7A9A24B0FE467C23506A43C5236DB9BBAC28AEFDDA617803E631C260');
INSERT INTO "trials" VALUES(4,1,3,1,327151522937161745,'tp=1,pp=1,dp=8,micro_batch_size=4,accumulation_steps=1,precision=bf16',3,'COMPLETED','search',1,NULL,1.36533333333333339399e+04,0.3,1795286251027615,1795286251028466,1767323045678901,X'0178BB9B2A9D39D5D4CD0E83200C00E077F16C08A015F638CEB86497CD642E1E8CEF3E7E445B455D6276980763A11285F6EB4F49A577A4CAFF542AC1C3655B0DA9452790607422684647515BD38949393C1CC4E32C8FA327A2155A9095B704549B59484320496B19051D1E71E44C2F7CE4ECB247A44044FA68864E20255D549308EDA88FBD95EEB921992D8A56628AE927E3720A09E389FC8037BB8B6E9833F8963A6090029390F6B36CA661EE8F5B326C33E81739A050C72CF46F46AA4D012E911336FA123BE63133DB94D99B54312333A90ABD8432699E9DC9E8CAD6F658EE8E12DB79ADABF2FDAAA384BA3D77A54E31F5358D3CE5F63882A9E61B87E1032A9DBCB6');
INSERT INTO "trials" VALUES(5,1,4,1,-4665210141920884289,'tp=1,pp=1,dp=8,micro_batch_size=5,accumulation_steps=1,precision=bf16',4,'FAILED','search',1,'OUT_OF_MEMORY',NULL,NULL,1795286251036881,1795286251037637,1795286251038168,X'0178BB9B2A9D39D5D4C10E82300C06E057597880A59D4EA777DF820BE83C1931134E867717189B2D3062E2494EFC6D21C0D8F7FA492AB32295FE53A910C2D16F35A2166F10C1782368C6AB645BF346548E96837820B7CBE8E1E21FBA63774E09B84F4E110D351B9ACB88BC3CE208D24C7C047958231209913E7DA043A2E4902C4BE48BFAECAD1CCE1F6CB226692626C6975C9613951E572401E8C9B9CA1D45DE5C0CC0579A664597CBEE0A05CA64CCD67B255CB7DE79D33F94B8D96B1DB5DD046D553BB1D55B183928EDB9689E96A830F8FC0673393BE5');
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
INSERT INTO "workloads" VALUES(1,'4385f7db0d4474b8796f86563966f296','tiny','gpu-1x8','gpu',8,'native',1024,'{"cluster":{"gpu":{"memory_bytes":80000000000.0,"memory_bytes_per_s":3000000000000.0,"name":"gpu","peak_flops_per_s":{"bf16":1000000000000000.0},"power_watts":null,"source":"","usd_per_hour":null},"gpus_per_node":8,"inter_node":{"bytes_per_s":25000000000.0,"latency_s":1e-05},"intra_node":{"bytes_per_s":64000000000.0,"latency_s":5e-06},"name":"gpu-1x8","num_nodes":1},"global_batch_size":[32,64],"model":{"attention_head_dim":0,"experts_per_token":0,"ffn_hidden_size":1024,"gated_mlp":false,"hidden_size":256,"max_positions":0,"name":"tiny","num_attention_heads":4,"num_experts":0,"num_kv_heads":4,"num_layers":4,"tied_embeddings":false,"vocab_size":1000},"optimizer":"adamw","seq_len":1024,"trainer":"native"}');
CREATE INDEX ix_workloads_model_cluster ON workloads (model, cluster);
CREATE INDEX ix_studies_created_us ON studies (created_us);
CREATE INDEX ix_studies_name ON studies (name);
CREATE INDEX ix_studies_status_created_us ON studies (status, created_us);
CREATE UNIQUE INDEX uq_attempts_study_number_attempt ON attempts (study, number, attempt);
CREATE INDEX ix_trials_measured ON trials (workload, config_key, throughput) WHERE throughput IS NOT NULL;
CREATE INDEX ix_trials_status_failure ON trials (status, failure);
CREATE INDEX ix_trials_study_status ON trials (study, status);
CREATE UNIQUE INDEX uq_trials_study_number ON trials (study, number);
COMMIT;
