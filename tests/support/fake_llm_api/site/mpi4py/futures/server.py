"""Program of the fake's worker process."""

from tensorrt_llm.fake.worker import main

if __name__ == "__main__":
    main()
