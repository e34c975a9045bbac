"""Puts the application together: `faust -A app worker`."""

import gc
import sys
from pathlib import Path

gc.disable()  # what is imported stays: to look for garbage in it, again and again, is a tenth of the start

# Faust has the working folder on sys.path only while it imports this file.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from agents import chat, deployments, drift, feedback, scoring, webhook
from cli import commands
from core.errors import HomunculusError
from core.settings import Settings
from engine.app import create_app
from web.server import serve

try:
    app = create_app(Settings.read(), [deployments.follow, webhook.follow])
    serve(app)
except HomunculusError as error:
    sys.exit(f"homunculus: {error}")
gc.freeze()
gc.enable()

__all__ = ["app", "chat", "commands", "deployments", "drift", "feedback", "scoring", "webhook"]
