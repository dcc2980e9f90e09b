"""The whole system on one machine: the services of compose.yaml as child processes."""
