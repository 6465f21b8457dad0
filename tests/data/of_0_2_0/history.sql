PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE runs (id INTEGER PRIMARY KEY, run TEXT NOT NULL, cluster TEXT NOT NULL,
            simulated INTEGER NOT NULL, started REAL NOT NULL, finished REAL NOT NULL, complete INTEGER NOT NULL,
            good INTEGER NOT NULL, exit INTEGER, arguments TEXT NOT NULL, passed INTEGER NOT NULL,
            failed INTEGER NOT NULL, error INTEGER NOT NULL, unjudged INTEGER NOT NULL, nodes INTEGER NOT NULL,
            UNIQUE (cluster, run));
INSERT INTO runs VALUES(1,'20261130T015436-24521','sandbox',1,1796003676.8589999675,1796003680.8150000572,1,0,1,'--cluster=sandbox --nodes=gpu[01-02] --report-dir=/srv/r2small -k test_kernel or test_sysctls or test_nvlink_state or test_temperature or test_uptime --history=/srv/h020small.sqlite -p no:cacheprovider',11,3,0,0,2);
CREATE TABLE nodes (id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, simulated INTEGER NOT NULL,
            name TEXT NOT NULL, UNIQUE (cluster, simulated, name));
INSERT INTO nodes VALUES(1,'sandbox',1,'gpu01');
INSERT INTO nodes VALUES(2,'sandbox',1,'gpu02');
CREATE TABLE node_runs (node INTEGER, started REAL, run INTEGER, good INTEGER NOT NULL,
            passed INTEGER NOT NULL, failed INTEGER NOT NULL, error INTEGER NOT NULL, unjudged INTEGER NOT NULL,
            PRIMARY KEY (node, started, run)) WITHOUT ROWID;
INSERT INTO node_runs VALUES(1,1796003676.8589999675,1,1,7,0,0,0);
INSERT INTO node_runs VALUES(2,1796003676.8589999675,1,0,4,3,0,0);
CREATE TABLE items (id INTEGER PRIMARY KEY, node INTEGER NOT NULL, "check" TEXT NOT NULL,
            UNIQUE (node, "check"));
INSERT INTO items VALUES(1,1,'gpu.nvlink_state');
INSERT INTO items VALUES(2,2,'gpu.nvlink_state');
INSERT INTO items VALUES(3,1,'gpu.temperature');
INSERT INTO items VALUES(4,2,'gpu.temperature');
INSERT INTO items VALUES(5,1,'os.kernel');
INSERT INTO items VALUES(6,2,'os.kernel');
INSERT INTO items VALUES(7,1,'os.uptime');
INSERT INTO items VALUES(8,2,'os.uptime');
INSERT INTO items VALUES(9,1,'os.kernel_settings');
INSERT INTO items VALUES(10,2,'os.kernel_settings');
INSERT INTO items VALUES(11,1,'os.sysctls');
INSERT INTO items VALUES(12,2,'os.sysctls');
INSERT INTO items VALUES(13,1,'os.kernel_log');
INSERT INTO items VALUES(14,2,'os.kernel_log');
CREATE TABLE verdicts (item INTEGER, started REAL, run INTEGER, outcome TEXT NOT NULL,
            message TEXT NOT NULL, action TEXT NOT NULL, PRIMARY KEY (item, started, run)) WITHOUT ROWID;
INSERT INTO verdicts VALUES(1,1796003676.8589999675,1,'passed','','');
INSERT INTO verdicts VALUES(2,1796003676.8589999675,1,'failed','gpu.nvlink_state on gpu02: GPU 4 (GPU-3ffeb815-30ae-80ae-02d9-0d7f7a150d5a, 0000:9d:00.0): measured 17 active links (inactive: link 7), expected 18','drain');
INSERT INTO verdicts VALUES(3,1796003676.8589999675,1,'passed','','');
INSERT INTO verdicts VALUES(4,1796003676.8589999675,1,'passed','','');
INSERT INTO verdicts VALUES(5,1796003676.8589999675,1,'passed','','');
INSERT INTO verdicts VALUES(6,1796003676.8589999675,1,'failed','os.kernel on gpu02: kernel: measured 6.8.0-60-generic, expected 6.8.0-79-generic','reboot');
INSERT INTO verdicts VALUES(7,1796003676.8589999675,1,'passed','','');
INSERT INTO verdicts VALUES(8,1796003676.8589999675,1,'passed','','');
INSERT INTO verdicts VALUES(9,1796003676.8589999675,1,'passed','','');
INSERT INTO verdicts VALUES(10,1796003676.8589999675,1,'passed','','');
INSERT INTO verdicts VALUES(11,1796003676.8589999675,1,'passed','','');
INSERT INTO verdicts VALUES(12,1796003676.8589999675,1,'failed','os.sysctls on gpu02: kernel.numa_balancing: measured 1, expected 0','drain');
INSERT INTO verdicts VALUES(13,1796003676.8589999675,1,'passed','','');
INSERT INTO verdicts VALUES(14,1796003676.8589999675,1,'passed','','');
CREATE TABLE findings (run INTEGER NOT NULL, item INTEGER NOT NULL, part TEXT NOT NULL,
            measured TEXT NOT NULL, expected TEXT NOT NULL);
INSERT INTO findings VALUES(1,2,'GPU 4 (GPU-3ffeb815-30ae-80ae-02d9-0d7f7a150d5a, 0000:9d:00.0)','17 active links (inactive: link 7)','18');
INSERT INTO findings VALUES(1,6,'kernel','6.8.0-60-generic','6.8.0-79-generic');
INSERT INTO findings VALUES(1,12,'kernel.numa_balancing','1','0');
CREATE TABLE series (id INTEGER PRIMARY KEY, node INTEGER NOT NULL, "check" TEXT NOT NULL,
            name TEXT NOT NULL, unit TEXT NOT NULL, device TEXT NOT NULL, better TEXT NOT NULL,
            detail INTEGER NOT NULL, UNIQUE (node, "check", name, unit, device));
INSERT INTO series VALUES(1,1,'gpu.nvlink_state','nvlinks_active','links','GPU 0','',0);
INSERT INTO series VALUES(2,1,'gpu.nvlink_state','nvlinks_active','links','GPU 1','',0);
INSERT INTO series VALUES(3,1,'gpu.nvlink_state','nvlinks_active','links','GPU 2','',0);
INSERT INTO series VALUES(4,1,'gpu.nvlink_state','nvlinks_active','links','GPU 3','',0);
INSERT INTO series VALUES(5,1,'gpu.nvlink_state','nvlinks_active','links','GPU 4','',0);
INSERT INTO series VALUES(6,1,'gpu.nvlink_state','nvlinks_active','links','GPU 5','',0);
INSERT INTO series VALUES(7,1,'gpu.nvlink_state','nvlinks_active','links','GPU 6','',0);
INSERT INTO series VALUES(8,1,'gpu.nvlink_state','nvlinks_active','links','GPU 7','',0);
INSERT INTO series VALUES(9,2,'gpu.nvlink_state','nvlinks_active','links','GPU 0','',0);
INSERT INTO series VALUES(10,2,'gpu.nvlink_state','nvlinks_active','links','GPU 1','',0);
INSERT INTO series VALUES(11,2,'gpu.nvlink_state','nvlinks_active','links','GPU 2','',0);
INSERT INTO series VALUES(12,2,'gpu.nvlink_state','nvlinks_active','links','GPU 3','',0);
INSERT INTO series VALUES(13,2,'gpu.nvlink_state','nvlinks_active','links','GPU 4','',0);
INSERT INTO series VALUES(14,2,'gpu.nvlink_state','nvlinks_active','links','GPU 5','',0);
INSERT INTO series VALUES(15,2,'gpu.nvlink_state','nvlinks_active','links','GPU 6','',0);
INSERT INTO series VALUES(16,2,'gpu.nvlink_state','nvlinks_active','links','GPU 7','',0);
INSERT INTO series VALUES(17,1,'gpu.temperature','temperature','C','GPU 0','',0);
INSERT INTO series VALUES(18,1,'gpu.temperature','temperature','C','GPU 1','',0);
INSERT INTO series VALUES(19,1,'gpu.temperature','temperature','C','GPU 2','',0);
INSERT INTO series VALUES(20,1,'gpu.temperature','temperature','C','GPU 3','',0);
INSERT INTO series VALUES(21,1,'gpu.temperature','temperature','C','GPU 4','',0);
INSERT INTO series VALUES(22,1,'gpu.temperature','temperature','C','GPU 5','',0);
INSERT INTO series VALUES(23,1,'gpu.temperature','temperature','C','GPU 6','',0);
INSERT INTO series VALUES(24,1,'gpu.temperature','temperature','C','GPU 7','',0);
INSERT INTO series VALUES(25,2,'gpu.temperature','temperature','C','GPU 0','',0);
INSERT INTO series VALUES(26,2,'gpu.temperature','temperature','C','GPU 1','',0);
INSERT INTO series VALUES(27,2,'gpu.temperature','temperature','C','GPU 2','',0);
INSERT INTO series VALUES(28,2,'gpu.temperature','temperature','C','GPU 3','',0);
INSERT INTO series VALUES(29,2,'gpu.temperature','temperature','C','GPU 4','',0);
INSERT INTO series VALUES(30,2,'gpu.temperature','temperature','C','GPU 5','',0);
INSERT INTO series VALUES(31,2,'gpu.temperature','temperature','C','GPU 6','',0);
INSERT INTO series VALUES(32,2,'gpu.temperature','temperature','C','GPU 7','',0);
INSERT INTO series VALUES(33,1,'os.uptime','uptime','s','','neither',0);
INSERT INTO series VALUES(34,2,'os.uptime','uptime','s','','neither',0);
INSERT INTO series VALUES(35,1,'os.kernel_log','kernel_log_lines','lines','','',0);
INSERT INTO series VALUES(36,2,'os.kernel_log','kernel_log_lines','lines','','',0);
CREATE TABLE metrics (series INTEGER, started REAL, run INTEGER, value REAL, fit INTEGER NOT NULL,
            PRIMARY KEY (series, started, run)) WITHOUT ROWID;
INSERT INTO metrics VALUES(1,1796003676.8589999675,1,18.0,1);
INSERT INTO metrics VALUES(2,1796003676.8589999675,1,18.0,1);
INSERT INTO metrics VALUES(3,1796003676.8589999675,1,18.0,1);
INSERT INTO metrics VALUES(4,1796003676.8589999675,1,18.0,1);
INSERT INTO metrics VALUES(5,1796003676.8589999675,1,18.0,1);
INSERT INTO metrics VALUES(6,1796003676.8589999675,1,18.0,1);
INSERT INTO metrics VALUES(7,1796003676.8589999675,1,18.0,1);
INSERT INTO metrics VALUES(8,1796003676.8589999675,1,18.0,1);
INSERT INTO metrics VALUES(9,1796003676.8589999675,1,18.0,0);
INSERT INTO metrics VALUES(10,1796003676.8589999675,1,18.0,0);
INSERT INTO metrics VALUES(11,1796003676.8589999675,1,18.0,0);
INSERT INTO metrics VALUES(12,1796003676.8589999675,1,18.0,0);
INSERT INTO metrics VALUES(13,1796003676.8589999675,1,17.0,0);
INSERT INTO metrics VALUES(14,1796003676.8589999675,1,18.0,0);
INSERT INTO metrics VALUES(15,1796003676.8589999675,1,18.0,0);
INSERT INTO metrics VALUES(16,1796003676.8589999675,1,18.0,0);
INSERT INTO metrics VALUES(17,1796003676.8589999675,1,33.0,1);
INSERT INTO metrics VALUES(18,1796003676.8589999675,1,34.0,1);
INSERT INTO metrics VALUES(19,1796003676.8589999675,1,33.0,1);
INSERT INTO metrics VALUES(20,1796003676.8589999675,1,30.0,1);
INSERT INTO metrics VALUES(21,1796003676.8589999675,1,33.0,1);
INSERT INTO metrics VALUES(22,1796003676.8589999675,1,31.0,1);
INSERT INTO metrics VALUES(23,1796003676.8589999675,1,31.0,1);
INSERT INTO metrics VALUES(24,1796003676.8589999675,1,33.0,1);
INSERT INTO metrics VALUES(25,1796003676.8589999675,1,34.0,0);
INSERT INTO metrics VALUES(26,1796003676.8589999675,1,32.0,0);
INSERT INTO metrics VALUES(27,1796003676.8589999675,1,34.0,0);
INSERT INTO metrics VALUES(28,1796003676.8589999675,1,32.0,0);
INSERT INTO metrics VALUES(29,1796003676.8589999675,1,32.0,0);
INSERT INTO metrics VALUES(30,1796003676.8589999675,1,34.0,0);
INSERT INTO metrics VALUES(31,1796003676.8589999675,1,35.0,0);
INSERT INTO metrics VALUES(32,1796003676.8589999675,1,32.0,0);
INSERT INTO metrics VALUES(33,1796003676.8589999675,1,1903284.1100000001025,1);
INSERT INTO metrics VALUES(34,1796003676.8589999675,1,1903284.1100000001025,0);
INSERT INTO metrics VALUES(35,1796003676.8589999675,1,9.0,1);
INSERT INTO metrics VALUES(36,1796003676.8589999675,1,9.0,0);
CREATE TABLE fleet (run INTEGER, "check" TEXT, name TEXT, unit TEXT, device TEXT, median REAL NOT NULL,
            PRIMARY KEY (run, "check", name, unit, device)) WITHOUT ROWID;
INSERT INTO fleet VALUES(1,'gpu.nvlink_state','nvlinks_active','links','GPU 0',18.0);
INSERT INTO fleet VALUES(1,'gpu.nvlink_state','nvlinks_active','links','GPU 1',18.0);
INSERT INTO fleet VALUES(1,'gpu.nvlink_state','nvlinks_active','links','GPU 2',18.0);
INSERT INTO fleet VALUES(1,'gpu.nvlink_state','nvlinks_active','links','GPU 3',18.0);
INSERT INTO fleet VALUES(1,'gpu.nvlink_state','nvlinks_active','links','GPU 4',17.5);
INSERT INTO fleet VALUES(1,'gpu.nvlink_state','nvlinks_active','links','GPU 5',18.0);
INSERT INTO fleet VALUES(1,'gpu.nvlink_state','nvlinks_active','links','GPU 6',18.0);
INSERT INTO fleet VALUES(1,'gpu.nvlink_state','nvlinks_active','links','GPU 7',18.0);
INSERT INTO fleet VALUES(1,'gpu.temperature','temperature','C','GPU 0',33.499999999999999999);
INSERT INTO fleet VALUES(1,'gpu.temperature','temperature','C','GPU 1',33.0);
INSERT INTO fleet VALUES(1,'gpu.temperature','temperature','C','GPU 2',33.499999999999999999);
INSERT INTO fleet VALUES(1,'gpu.temperature','temperature','C','GPU 3',31.0);
INSERT INTO fleet VALUES(1,'gpu.temperature','temperature','C','GPU 4',32.5);
INSERT INTO fleet VALUES(1,'gpu.temperature','temperature','C','GPU 5',32.5);
INSERT INTO fleet VALUES(1,'gpu.temperature','temperature','C','GPU 6',33.0);
INSERT INTO fleet VALUES(1,'gpu.temperature','temperature','C','GPU 7',32.5);
INSERT INTO fleet VALUES(1,'os.kernel_log','kernel_log_lines','lines','',9.0);
INSERT INTO fleet VALUES(1,'os.uptime','uptime','s','',1903284.1100000001025);
CREATE TABLE accepted (cluster TEXT, simulated INTEGER, node TEXT, started REAL NOT NULL,
            PRIMARY KEY (cluster, simulated, node)) WITHOUT ROWID;
CREATE INDEX runs_started ON runs (cluster, simulated, started);
CREATE INDEX node_runs_run ON node_runs (run);
CREATE INDEX verdicts_run ON verdicts (run);
CREATE INDEX findings_run ON findings (run, item);
CREATE INDEX metrics_run ON metrics (run);
COMMIT;
